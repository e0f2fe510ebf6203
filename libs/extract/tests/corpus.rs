//! The difficult documents of other projects' test suites, through the real parser process.

mod support;

use domain::DocumentFailure;
use ragmux_extract::{Format, detect};
use support::{Outcome, corpus, parse};
use unicode_normalization::UnicodeNormalization;

/// What must come out of a file.
enum Expect {
    Contains(&'static str),
    Chars(usize),
    Code(&'static [DocumentFailure]),
    /// Any verdict or code, but one.
    Ends,
}

use DocumentFailure as F;
use Expect::{Chars, Code, Contains, Ends};

const PDFS: &[(&str, Expect)] = &[
    ("copy_paste_ligatures.pdf", Contains("ffi")),
    ("rotation.pdf", Contains("This is my first page with normal layout")),
    ("tracemonkey.pdf", Contains("Trace-based Just-in-Time Type Specialization")),
];

fn read(folder: &str, name: &str, format: Format) -> Option<Outcome> {
    let bytes = std::fs::read(corpus()?.join(folder).join(name)).unwrap();
    let head = &bytes[..bytes.len().min(ragmux_extract::HEAD_BYTES)];
    assert_eq!(detect(name, None, head), Ok(format), "{name}");
    Some(parse(format, &bytes))
}

#[test]
fn explore() {
    let Some(dir) = corpus() else { return };
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("pdf/expected.json")).unwrap()).unwrap();
    for e in expected.as_array().unwrap() {
        let name = e["file"].as_str().unwrap().strip_prefix("pdf/").unwrap();
        let t = std::time::Instant::now();
        let o = read("pdf", name, Format::Pdf).unwrap();
        let nfkc: String = o.text().nfkc().collect();
        let ok = e["must_contain"].as_array().unwrap().iter().all(|m| nfkc.contains(m.as_str().unwrap()));
        println!("{name}: {:?} died={} pages={} failed={} chars={} contains={ok} want={} {} {:?}\n    {:?}", o.result, o.died, o.extracted.pages.len(), o.extracted.summary.failed_pages, nfkc.chars().count(), e["must_contain"], e["otherwise"], t.elapsed(), nfkc.chars().take(200).collect::<String>());
    }
    for name in ["testWORD_text_box.docx","footnotes.docx","testWORD_sdtInTextBox.docx","testWORD_tableInRunInsideParagraph.docx","017097.docx","NullHeader.docx","testWORD_truncated.docx","testWORD_protected_passtika.docx","2exe.docx"] {
        let o = read("office", name, Format::Docx).unwrap();
        println!("{name}: {:?} died={} words={} title={:?} sections={:?}\n    {:?}", o.result, o.died, o.text().split(' ').count(), o.extracted.summary.title, o.extracted.pages.iter().flat_map(|p| &p.sections).map(|s| s.heading_path.join("/")).take(8).collect::<Vec<_>>(), o.text().chars().take(600).collect::<String>());
    }
    let _ = (PDFS.len(), Chars(1), Ends, Code(&[F::NoText]));
}
