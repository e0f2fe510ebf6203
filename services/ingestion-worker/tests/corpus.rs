//! The difficult documents of other projects' test suites, through the real parser and its processes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of a test fail it by panicking"
)]

use std::path::PathBuf;

use domain::DocumentFailure as F;
use extract::protocol::SandboxPolicy;
use extract::{Extracted, Format, HEAD_BYTES, detect};
use ingestion_worker::parser::{ParseError, Parser, ParserSettings};
use tokio_util::sync::CancellationToken;
use unicode_normalization::UnicodeNormalization;

/// What must come out of a file, compared after NFKC and collapsing white space.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Contains(&'static str),
    Chars(usize),
    Code(&'static [F]),
    /// Text or any code: what counts is that it ends.
    Ends,
}

use Expect::{Chars, Code, Contains, Ends};

const PDFS: &[(&str, Expect)] = &[
    ("90ms_rksj_h_sample.pdf", Contains("日本語")),
    ("ArabicCIDTrueType.pdf", Contains("انواع الخطوط")),
    ("ContentStreamCycleType3insideType3.pdf", Contains("ab")),
    ("PDFBOX-4372-2DAYCLVOFG3FTVO4RMAJJL3VTPNYDFRO-p4_reduced.pdf", Ends),
    ("Pages-tree-refs.pdf", Contains("Pages loop")),
    ("REDHAT-1531897-0.pdf", Code(&[F::PdfCorrupt, F::PdfNoText])),
    ("Type3WordSpacing.pdf", Contains("ab ba abba")),
    ("cid_cff.pdf", Contains("processor reference chart")),
    ("copy_paste_ligatures.pdf", Contains("ffi")),
    ("encrypted_aes256_r6_empty_user.pdf", Chars(40_000)),
    ("encrypted_aes256_r6_user.pdf", Code(&[F::PdfEncrypted])),
    ("hang_4mb_10kpages.pdf", Code(&[F::TooManyPages])),
    ("hang_5kb_1page.pdf", Ends),
    ("helloworld-bad.pdf", Contains("Hello, world!")),
    ("issue3521.pdf", Contains("我们都是黑体字")),
    ("mixedfonts.pdf", Contains("Font Types Original Example")),
    ("noembed-jis7.pdf", Contains("あいうえお")),
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
    ("xref_command_missing.pdf", Contains("Reduced test-case")),
];

/// The folder of difficult documents, if this machine has it.
fn corpus() -> Option<PathBuf> {
    let root = std::env::var_os("RAGMUX_CORPUS_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")), PathBuf::from);
    if root.join("pdf").is_dir() {
        return Some(root);
    }
    eprintln!("NOT RUN: no difficult documents in RAGMUX_CORPUS_DIR or ../shared/data");
    None
}

async fn parse(format: Format, bytes: &[u8]) -> Result<Extracted, F> {
    let settings = ParserSettings {
        program: PathBuf::from(env!("CARGO_BIN_EXE_ragmux-ingestion-worker")),
        ..ParserSettings::own_binary(SandboxPolicy::BestEffort)
    };
    match Parser::new(settings).parse(format, bytes, &CancellationToken::new()).await {
        Ok(parsed) => Ok(parsed.extracted),
        Err(ParseError::Document(failure)) => Err(failure),
        Err(error) => panic!("{error}"),
    }
}

async fn read(folder: &str, name: &str, format: Format) -> Option<Result<Extracted, F>> {
    let bytes = std::fs::read(corpus()?.join(folder).join(name)).unwrap();
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    assert_eq!(detect(name, None, head), Ok(format), "{name}");
    Some(parse(format, &bytes).await)
}

fn text(extracted: &Extracted) -> String {
    let text: String = extract::chunk::document_text(extracted).nfkc().collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is wrong, if anything is.
fn wrong(outcome: &Result<Extracted, F>, expect: Expect) -> Option<String> {
    let said = outcome.as_ref().map(text);
    let fine = match (expect, &said) {
        (Contains(part), Ok(text)) => text.contains(part),
        (Chars(least), Ok(text)) => text.chars().count() >= least,
        (Code(codes), Err(code)) => codes.contains(code),
        (Ends, _) => true,
        _ => false,
    };
    (!fine).then(|| format!("expected {expect:?}, got {said:.300?}"))
}

#[tokio::test]
async fn pdfs_give_their_text_or_the_right_code() {
    let mut problems = Vec::new();
    for (name, expect) in PDFS {
        let Some(outcome) = read("pdf", name, Format::Pdf).await else { return };
        problems.extend(wrong(&outcome, *expect).map(|problem| format!("{name}: {problem}")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test]
async fn pages_keep_their_numbers_and_the_engine_and_its_score_are_known() {
    let Some(outcome) = read("pdf", "tracemonkey.pdf", Format::Pdf).await else { return };
    let extracted = outcome.unwrap();
    let numbers: Vec<Option<u32>> = extracted.pages.iter().map(|p| p.number).collect();
    assert_eq!(numbers, (1..=14).map(Some).collect::<Vec<_>>());
    assert_eq!(extracted.summary.page_count, 14);
    assert_eq!(extracted.summary.engine, "pdf-extract");
    assert!(extracted.summary.sanity.unwrap() > 0.9);
    let repaired = read("pdf", "xref_command_missing.pdf", Format::Pdf).await.unwrap().unwrap();
    assert_eq!(repaired.summary.engine, "pdf_oxide");
}

#[tokio::test]
async fn word_documents_give_their_text_or_the_right_code() {
    let words = [
        ("017097.docx", 4_500..5_600),
        ("NullHeader.docx", 600..760),
        ("testWORD_tableInRunInsideParagraph.docx", 120..260),
    ];
    for (name, range) in words {
        let Some(outcome) = read("office", name, Format::Docx).await else { return };
        let count = text(&outcome.unwrap()).split_whitespace().filter(|w| *w != "|").count();
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
        let Some(outcome) = read("office", name, Format::Docx).await else { return };
        assert_eq!(wrong(&outcome, expect), None, "{name}");
    }
}

#[tokio::test]
async fn other_office_files_give_their_text() {
    let files = [
        ("testEXCEL.xlsx", Format::Xlsx, "Numbers and their Squares"),
        ("testPPT.pptx", Format::Pptx, "Attachment Test"),
        ("testOpenOffice2.odt", Format::Odt, "sample Open Office document"),
        ("testEPUB.epub", Format::Epub, "Plus a simple div"),
        ("testRTF.rtf", Format::Rtf, "Test d’indexation Word"),
    ];
    for (name, format, part) in files {
        let Some(outcome) = read("office", name, format).await else { return };
        assert_eq!(wrong(&outcome, Contains(part)), None, "{name}");
    }
}

#[tokio::test]
async fn a_text_box_is_read_once() {
    let Some(outcome) = read("office", "testWORD_text_box.docx", Format::Docx).await else { return };
    let text = text(&outcome.unwrap());
    assert_eq!(text.matches("inside of a text box").count(), 1, "{text}");
}
