//! The difficult documents of other projects' test suites, through the real parser process.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of a test fail it by panicking")]

mod support;

use domain::DocumentFailure as F;
use ragmux_extract::{Format, HEAD_BYTES, detect};
use support::{Outcome, corpus, parse};
use unicode_normalization::UnicodeNormalization;

/// What must come out of a file, compared after NFKC and collapsing white space.
#[derive(Clone, Copy)]
enum Expect {
    Contains(&'static str),
    Chars(usize),
    Code(&'static [F]),
}

use Expect::{Chars, Code, Contains};

const PDFS: &[(&str, Expect)] = &[
    ("ArabicCIDTrueType.pdf", Contains("انواع الخطوط")),
    ("PDFBOX-4372-2DAYCLVOFG3FTVO4RMAJJL3VTPNYDFRO-p4_reduced.pdf", Code(&[F::ParserCrashed])),
    ("Pages-tree-refs.pdf", Contains("Pages loop")),
    ("REDHAT-1531897-0.pdf", Code(&[F::PdfCorrupt, F::PdfNoText])),
    ("cid_cff.pdf", Contains("processor reference chart")),
    ("copy_paste_ligatures.pdf", Contains("ffi")),
    ("encrypted_aes256_r6_empty_user.pdf", Chars(40_000)),
    ("encrypted_aes256_r6_user.pdf", Code(&[F::PdfEncrypted])),
    ("hang_4mb_10kpages.pdf", Code(&[F::TooManyPages])),
    ("hang_5kb_1page.pdf", Code(&[F::PdfNoText])),
    ("mixedfonts.pdf", Contains("Font Types Original Example")),
    ("poppler-67295-0.pdf", Contains("TestString123")),
    ("poppler-85140-0.pdf", Code(&[F::PdfCorrupt, F::PdfNoText])),
    ("rotation.pdf", Contains("This is my first page with normal layout")),
    ("testOCR.pdf", Code(&[F::PdfNoText])),
    ("testOptionalHyphen.pdf", Contains("optionalhyphen")),
    ("testOverlappingText.pdf", Contains("Text the first time")),
    ("testPDFTwoTextBoxes.pdf", Contains("Left column line 1")),
    ("testPDF_protected.pdf", Contains("RETHINKING THE FINANCIAL NETWORK")),
    ("testPDF_rotated.pdf", Chars(900)),
    ("tracemonkey.pdf", Contains("Trace-based Just-in-Time Type Specialization")),
];

/// Files whose text this engine cannot reach (fonts with predefined CMaps, Type 3 fonts, broken cross-references).
/// What matters until another engine reads them: no text is invented, and what is missing is said.
const PDFS_OUT_OF_REACH: &[&str] = &[
    "90ms_rksj_h_sample.pdf",
    "ContentStreamCycleType3insideType3.pdf",
    "Type3WordSpacing.pdf",
    "helloworld-bad.pdf",
    "issue3521.pdf",
    "noembed-jis7.pdf",
    "xref_command_missing.pdf",
];

fn read(folder: &str, name: &str, format: Format) -> Option<Outcome> {
    let bytes = std::fs::read(corpus()?.join(folder).join(name)).unwrap();
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    assert_eq!(detect(name, None, head), Ok(format), "{name}");
    Some(parse(format, &bytes))
}

fn check(name: &str, outcome: &Outcome, expect: Expect) {
    let text: String = outcome.text().nfkc().collect();
    match expect {
        Contains(part) => {
            assert_eq!(outcome.result, Ok(()), "{name}");
            assert!(text.contains(part), "{name}: {text:.300}");
        }
        Chars(least) => {
            assert_eq!(outcome.result, Ok(()), "{name}");
            assert!(text.chars().count() >= least, "{name}: {}", text.chars().count());
        }
        Code(codes) => {
            assert!(outcome.result.is_err_and(|code| codes.contains(&code)), "{name}: {:?}", outcome.result);
        }
    }
}

#[test]
fn pdfs_give_their_text_or_the_right_code() {
    for (name, expect) in PDFS {
        let Some(outcome) = read("pdf", name, Format::Pdf) else { return };
        check(name, &outcome, *expect);
    }
}

#[test]
fn pdfs_out_of_reach_are_never_complete() {
    for name in PDFS_OUT_OF_REACH {
        let Some(outcome) = read("pdf", name, Format::Pdf) else { return };
        match outcome.result {
            Ok(()) => assert!(outcome.extracted.summary.failed_pages > 0, "{name}"),
            Err(code) => {
                assert!(matches!(code, F::PdfUnreadable | F::PdfCorrupt | F::PdfNoText), "{name}: {code:?}");
            }
        }
    }
}

#[test]
fn pages_keep_their_numbers() {
    let Some(outcome) = read("pdf", "tracemonkey.pdf", Format::Pdf) else { return };
    let numbers: Vec<Option<u32>> = outcome.extracted.pages.iter().map(|p| p.number).collect();
    assert_eq!(numbers, (1..=14).map(Some).collect::<Vec<_>>());
    assert_eq!(outcome.extracted.summary.page_count, 14);
}

#[test]
fn word_documents_give_their_text_or_the_right_code() {
    let words = [
        ("017097.docx", 4_500..5_600),
        ("NullHeader.docx", 600..760),
        ("testWORD_tableInRunInsideParagraph.docx", 120..260),
    ];
    for (name, range) in words {
        let Some(outcome) = read("office", name, Format::Docx) else { return };
        assert_eq!(outcome.result, Ok(()), "{name}");
        let count = outcome.text().split_whitespace().filter(|w| *w != "|").count();
        assert!(range.contains(&count), "{name}: {count} words");
    }
    let parts = [
        ("testWORD_sdtInTextBox.docx", Contains("rich-text-content-control")),
        ("footnotes.docx", Contains("Eto ochen prostoy[1] text so snoskoy [1] snoska")),
        ("testWORD_truncated.docx", Code(&[F::Corrupt])),
        ("testWORD_protected_passtika.docx", Code(&[F::Encrypted])),
        ("2exe.docx", Contains("Embedded object")),
    ];
    for (name, expect) in parts {
        let Some(outcome) = read("office", name, Format::Docx) else { return };
        check(name, &outcome, expect);
    }
}

#[test]
fn a_text_box_is_read_once() {
    let Some(outcome) = read("office", "testWORD_text_box.docx", Format::Docx) else { return };
    assert_eq!(outcome.text().matches("inside of a text box").count(), 1, "{}", outcome.text());
}

#[test]
fn other_office_files_are_not_word_documents() {
    let Some(dir) = corpus() else { return };
    for name in ["testEXCEL.xlsx", "testPPT.pptx", "testOpenOffice2.odt", "testEPUB.epub", "testRTF.rtf"] {
        let bytes = std::fs::read(dir.join("office").join(name)).unwrap();
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        assert_eq!(detect(name, None, head), Err(F::UnsupportedType), "{name}");
        assert!(detect("renamed.pdf", None, head).is_err(), "{name}");
        if !name.ends_with("rtf") {
            // A package whose first bytes do not show what it is gets found out by the parser.
            assert_eq!(parse(Format::Docx, &bytes).result, Err(F::TypeMismatch), "{name}");
        }
    }
}
