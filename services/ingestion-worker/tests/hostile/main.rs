//! Files that are broken or mean harm, through the real parser: no process outlives its limits, no worker dies, and each
//! file gets its text or its code.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of a test fail it by panicking"
)]

mod package;
mod pdf;

use std::path::PathBuf;

use domain::DocumentFailure as F;
use extract::protocol::{ChildLimits, SandboxPolicy};
use extract::{Extracted, Format, HEAD_BYTES, detect};
use ingestion_worker::parser::{ParseError, Parser, ParserSettings};
use tokio_util::sync::CancellationToken;

/// What may come out of a file.
enum Expect {
    /// Exactly this text, white space collapsed.
    Text(&'static str),
    /// Text with this part, whatever else is missing.
    Part(&'static str),
    /// One of these codes.
    Code(&'static [F]),
    /// Text or a code of the document's: what counts is that it ends.
    Ends,
}

use Expect::{Code, Ends, Part, Text};

/// As in production but for the processor time, which the files that never end would take whole.
fn settings() -> ParserSettings {
    ParserSettings {
        program: PathBuf::from(env!("CARGO_BIN_EXE_ragmux-ingestion-worker")),
        limits: ChildLimits { cpu_seconds: 5, ..ChildLimits::default() },
        ..ParserSettings::own_binary(SandboxPolicy::BestEffort)
    }
}

async fn parse(format: Format, bytes: &[u8]) -> Result<Extracted, F> {
    match Parser::new(settings()).parse(format, bytes, &CancellationToken::new()).await {
        Ok(parsed) => Ok(parsed.extracted),
        Err(ParseError::Document(failure)) => Err(failure),
        Err(error) => panic!("the worker's own fault: {error}"),
    }
}

fn text(extracted: &Extracted) -> String {
    let text = extract::chunk::document_text(extracted);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn check(cases: Vec<(&str, Format, Vec<u8>, Expect)>) {
    let mut problems = Vec::new();
    for (name, format, bytes, expect) in cases {
        let said = parse(format, &bytes).await.map(|extracted| text(&extracted));
        let fine = match (&expect, &said) {
            (Text(wanted), Ok(text)) => text == wanted,
            (Part(wanted), Ok(text)) => text.contains(wanted),
            (Code(codes), Err(code)) => codes.contains(code),
            (Ends, _) => true,
            _ => false,
        };
        if !fine {
            problems.push(format!("{name}: {said:.200?}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test]
async fn broken_pdfs_give_what_is_left_of_them() {
    use pdf::HELLO;
    let given = |name, bytes, expect| (name, Format::Pdf, bytes, expect);
    check(vec![
        given("whole", pdf::plain(), Text("hello first page the second page")),
        given("truncated", pdf::truncated(), Part(HELLO)),
        given("wrong offsets", pdf::wrong_offsets(), Part(HELLO)),
        given("wrong start", pdf::wrong_start(), Part(HELLO)),
        given("tables in a circle", pdf::endless_tables(), Part(HELLO)),
        given("pages in a circle", pdf::page_loop(), Part(HELLO)),
        given("a length of itself", pdf::length_of_itself(), Part(HELLO)),
        given("a reference to itself", pdf::reference_loop(), Part(HELLO)),
        given("many pages claimed", pdf::many_pages_claimed(), Part(HELLO)),
        given("a form in itself", pdf::form_loop(), Part(HELLO)),
        given("galactic glyphs", pdf::degenerate_matrix(), Part(HELLO)),
        given("noise", pdf::noise(), Code(&[F::PdfCorrupt, F::PdfNoText])),
        given("nothing", b"%PDF-1.7".to_vec(), Code(&[F::PdfCorrupt, F::PdfNoText])),
        given("twenty thousand pages", pdf::many_pages(), Code(&[F::TooManyPages])),
        given("pages in folders", pdf::deep_pages(), Code(&[F::PdfCorrupt, F::PdfNoText, F::ParserCrashed])),
        given("deep arrays", pdf::deep_arrays(), Ends),
    ])
    .await;
}

#[tokio::test]
async fn pdfs_without_end_reach_a_limit_and_earlier_pages_are_kept() {
    use pdf::HELLO;
    let given = |name, bytes, expect| (name, Format::Pdf, bytes, expect);
    check(vec![
        given("a bomb", pdf::bomb(), Part(HELLO)),
        given("a bomb in a bomb", pdf::double_bomb(), Part(HELLO)),
        given("forms without end", pdf::nested_forms(), Part(HELLO)),
        given("a map without end", pdf::endless_map(), Part(HELLO)),
        given("a million strings", pdf::many_strings(), Part(HELLO)),
    ])
    .await;
}

#[tokio::test]
async fn a_pdf_with_changed_bytes_always_ends() {
    let good = pdf::two_pages(b"BT /F 12 Tf 50 700 Td [(the)-300(second)] TJ (page) ' ET", "", "", &[]);
    check((1..25).map(|seed| ("damaged", Format::Pdf, pdf::damaged(&good, seed), Ends)).collect()).await;
}

#[tokio::test]
async fn packages_give_their_text() {
    use package::{chapter, docx, epub, odt, open_text, paragraph, pptx, strings, word, xlsx};
    let sheet = "<row r=\"1\"><c r=\"A1\" t=\"s\"><v>0</v></c><c r=\"B1\" t=\"s\"><v>1</v></c></row>\
        <row r=\"2\"><c r=\"A2\" t=\"inlineStr\"><is><t>Bolt</t></is></c><c r=\"B2\"><v>1.5</v></c></row>\
        <row r=\"900000\"><c r=\"XFD900000\"><v>7</v></c></row>";
    check(vec![
        ("docx", Format::Docx, docx(&word(&paragraph("plain words"))), Text("plain words")),
        ("xlsx", Format::Xlsx, xlsx(sheet, &strings(&["Name", "Price"])), Text("Prices Name: Bolt | Price: 1.5 7")),
        ("pptx", Format::Pptx, pptx(), Text("Plan First we measure Say it slowly")),
        (
            "odt",
            Format::Odt,
            odt(&open_text("", "<text:h text:outline-level=\"1\">Head</text:h><text:p>body</text:p>")),
            Text("Head body"),
        ),
        ("epub", Format::Epub, epub(&chapter("", "<h1>One</h1><p>It began.</p>")), Text("The Book One It began.")),
        ("rtf", Format::Rtf, br"{\rtf1\ansi caf\'e9 {\b bold}\par next}".to_vec(), Text("café bold next")),
    ])
    .await;
}

#[tokio::test]
async fn packages_that_inflate_without_bound_are_refused() {
    let mut cases = Vec::new();
    for (format, part) in [
        (Format::Docx, "word/document.xml"),
        (Format::Pptx, "ppt/presentation.xml"),
        (Format::Xlsx, "xl/workbook.xml"),
        (Format::Odt, "content.xml"),
        (Format::Epub, "META-INF/container.xml"),
    ] {
        cases.push(("inflating", format, package::inflating(part), Code(&[F::ArchiveBomb])));
        let codes = Code(&[F::ArchiveBomb, F::Corrupt]);
        cases.push(("inflating in secret", format, package::inflating_in_secret(part), codes));
        cases.push(("crowded", format, package::crowded(part), Code(&[F::ArchiveBomb])));
    }
    check(cases).await;
}

#[tokio::test]
async fn names_in_xml_are_neither_multiplied_nor_looked_up() {
    use package::{chapter, docx, epub, laughs, odt, open_text, paragraph, strings, thief, word, xlsx};
    for (before, name) in [(laughs(), "l9"), (thief().to_owned(), "thief")] {
        let said = format!("start &{name}; end");
        let sheet = "<row r=\"1\"><c r=\"A1\" t=\"s\"><v>0</v></c></row>";
        let files = [
            (Format::Docx, docx(&(before.clone() + &word(&paragraph(&said))))),
            (Format::Odt, odt(&open_text(&before, &format!("<text:p>{said}</text:p>")))),
            (Format::Epub, epub(&chapter(&before, &format!("<p>{said}</p>")))),
            (Format::Xlsx, xlsx(sheet, &(before.clone() + &strings(&[said.as_str()])))),
            (Format::Html, chapter(&before, &said).into_bytes()),
        ];
        for (format, bytes) in files {
            match parse(format, &bytes).await {
                Ok(extracted) => {
                    let text = text(&extracted);
                    assert!(
                        text.len() < 1000 && !text.contains("haha") && !text.contains("root:"),
                        "{format:?}: {text:.200}"
                    );
                }
                Err(code) => assert!(matches!(code, F::Corrupt | F::NoText | F::ParserLimit), "{format:?}: {code:?}"),
            }
        }
    }
}

#[tokio::test]
async fn nesting_without_end_gets_a_code_or_its_text() {
    use package::{docx, epub, odt, open_text, strings, word, xlsx};
    let limits = &[F::ParserLimit, F::Corrupt, F::ParserCrashed];
    let deep = |open: &str| open.repeat(100_000);
    let html = |open: &str| format!("{}deep", deep(open)).into_bytes();
    let mail = (0..5000).fold(String::new(), |mail, i| {
        mail + &format!("Content-Type: multipart/mixed; boundary=b{i}\r\n\r\n--b{i}\r\n")
    });
    check(vec![
        ("docx", Format::Docx, docx(&word(&deep("<w:sdt><w:sdtContent>"))), Code(limits)),
        ("odt", Format::Odt, odt(&open_text("", &deep("<text:section>"))), Code(limits)),
        (
            "xlsx",
            Format::Xlsx,
            xlsx(&deep("<row>"), &strings(&[&deep("<r>")])),
            Code(&[F::Corrupt, F::NoText, F::ParserLimit]),
        ),
        ("epub", Format::Epub, epub(&package::chapter("", &deep("<div>"))), Ends),
        ("rtf", Format::Rtf, format!("{{\\rtf1 {}deep", deep("{")).into_bytes(), Ends),
        ("html", Format::Html, html("<span>"), Text("deep")),
        ("html that is slow to nest", Format::Html, html("<div><b>"), Ends),
        ("markdown", Format::Markdown, format!("{}deep", deep("> ")).into_bytes(), Part("deep")),
        ("json", Format::Json, deep("[").into_bytes(), Ends),
        ("mail", Format::Mail, mail.into_bytes(), Ends),
        ("columns", Format::Csv, ",".repeat(1_000_000).into_bytes(), Code(&[F::NoText])),
    ])
    .await;
}

#[tokio::test]
async fn damaged_files_are_told_apart_from_empty_ones() {
    use package::{compound_noise, docx, paragraph, word};
    let half = |bytes: Vec<u8>| bytes[..bytes.len() / 2].to_vec();
    let whole = docx(&word(&paragraph("plain words")));
    let corrupt = || Code(&[F::Corrupt]);
    check(vec![
        ("docx", Format::Docx, half(whole.clone()), corrupt()),
        ("pptx", Format::Pptx, half(package::pptx()), corrupt()),
        ("xlsx", Format::Xlsx, half(package::xlsx("", "")), corrupt()),
        ("odt", Format::Odt, half(package::odt("")), corrupt()),
        ("epub", Format::Epub, half(package::epub("")), corrupt()),
        ("doc", Format::Doc, compound_noise(), corrupt()),
        ("ppt", Format::Ppt, compound_noise(), corrupt()),
        ("xls", Format::Xls, compound_noise(), corrupt()),
        ("empty docx", Format::Docx, docx(&word("")), Code(&[F::NoText])),
        ("empty rtf", Format::Rtf, br"{\rtf1 }".to_vec(), Code(&[F::NoText])),
        ("nothing", Format::Text, Vec::new(), Code(&[F::EmptyFile])),
        ("one as another", Format::Xlsx, whole.clone(), Code(&[F::TypeMismatch])),
        ("one as another", Format::Odt, whole.clone(), Code(&[F::TypeMismatch])),
        ("one as another", Format::Docx, package::pptx(), Code(&[F::TypeMismatch])),
    ])
    .await;
    for (name, bytes, failure) in [
        ("letter.xlsx", whole.clone(), F::TypeMismatch),
        ("letter.pdf", whole.clone(), F::TypeMismatch),
        ("letter.docx", pdf::plain(), F::TypeMismatch),
        ("letter.docx", b"just text".to_vec(), F::TypeMismatch),
        ("letter.txt", whole, F::TypeMismatch),
        ("letter.eml", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(), F::BinaryContent),
    ] {
        assert_eq!(detect(name, None, &bytes[..bytes.len().min(HEAD_BYTES)]), Err(failure), "{name}");
    }
}

#[tokio::test]
async fn text_in_any_encoding_is_read_and_its_encoding_kept() {
    let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    for (bytes, charset, wanted) in [
        (b"\xEF\xBB\xBFplain".to_vec(), "UTF-8", "plain"),
        ([b"\xFF\xFE".to_vec(), wide("wide words")].concat(), "UTF-16LE", "wide words"),
        (wide("wide words"), "UTF-16LE", "wide words"),
        (b"Stra\xDFe und caf\xE9, dann noch ein Satz".to_vec(), "windows-1252", "Straße und café, dann noch ein Satz"),
    ] {
        let extracted = parse(Format::Text, &bytes).await.unwrap();
        assert_eq!(text(&extracted), wanted);
        assert_eq!(extracted.summary.charset.as_deref(), Some(charset));
    }
    // Two encodings in one file: one of them is believed, and nothing that both have in common is lost.
    let mixed: Vec<u8> = "caf\u{e9} and ".bytes().chain(*b"caf\xE9 too").collect();
    assert!(text(&parse(Format::Text, &mixed).await.unwrap()).ends_with("and café too"));
    let extracted = parse(Format::Csv, "Größe;Preis\n3;4,50\n".as_bytes()).await.unwrap();
    assert_eq!(text(&extracted), "Größe: 3 | Preis: 4,50");
    assert_eq!(extracted.summary.charset.as_deref(), Some("UTF-8"));
    assert_eq!(parse(Format::Text, b"\0\x01\x02\x03\0\x07\0\x10").await.unwrap_err(), F::BinaryContent);
}

#[tokio::test]
async fn a_running_parser_is_tied_down() {
    let cancel = CancellationToken::new();
    let parser = Parser::new(settings());
    let bytes = pdf::nested_forms();
    let look = async {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
            if let Some(pid) = children.split_whitespace().next()
                && let (Ok(status), Ok(limits)) = (
                    std::fs::read_to_string(format!("/proc/{pid}/status")),
                    std::fs::read_to_string(format!("/proc/{pid}/limits")),
                )
                && status.contains("Seccomp:\t2")
            {
                cancel.cancel();
                return (status, limits);
            }
            assert!(tokio::time::Instant::now() < deadline, "no parser was confined");
            tokio::task::yield_now().await;
        }
    };
    let (_, (status, limits)) = tokio::join!(parser.parse(Format::Pdf, &bytes, &cancel), look);
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().next().unwrap().to_owned()
    };
    let memory = ChildLimits::default().address_space_bytes.to_string();
    let wanted = [
        ("Max address space", memory.as_str()),
        ("Max cpu time", "5"),
        ("Max file size", "0"),
        ("Max open files", "16"),
        ("Max processes", "0"),
        ("Max core file size", "0"),
    ];
    for (name, value) in wanted {
        assert_eq!(limit(name), value, "{name}");
    }
}
