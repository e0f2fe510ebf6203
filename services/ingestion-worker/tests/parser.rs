//! The parent's side of the parser, with real processes.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by panicking")]

use std::path::PathBuf;
use std::time::Duration;

use domain::DocumentFailure as F;
use extract::Format;
use extract::protocol::{ChildLimits, SandboxPolicy};
use ingestion_worker::parser::{ParseError, Parsed, Parser, ParserSettings};
use tokio_util::sync::CancellationToken;

fn settings() -> ParserSettings {
    ParserSettings {
        program: PathBuf::from(env!("CARGO_BIN_EXE_ragmux-ingestion-worker")),
        ..ParserSettings::own_binary(SandboxPolicy::BestEffort)
    }
}

async fn parse(settings: ParserSettings, format: Format, bytes: &[u8]) -> Result<Parsed, ParseError> {
    Parser::new(settings).parse(format, bytes, &CancellationToken::new()).await
}

/// A PDF whose first page says hello and whose second draws form `N`, which draws `forms` in turn.
fn pdf(forms: &[(&str, usize)]) -> Vec<u8> {
    pdf_of("/N Do", forms)
}

fn pdf_of(second: &str, forms: &[(&str, usize)]) -> Vec<u8> {
    let stream = |dictionary: String, content: String| {
        format!("<<{dictionary}/Length {}>>\nstream\n{content}\nendstream", content.len())
    };
    let mut objects = vec![
        "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
        "<</Type/Pages/Count 2/Kids[4 0 R 6 0 R]>>".to_owned(),
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>".to_owned(),
    ];
    for (page, content) in [(4, "BT /F 12 Tf 50 700 Td (hello) Tj ET"), (6, second)] {
        objects.push(format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents {} 0 R\
             /Resources<</Font<</F 3 0 R>>/XObject<</N 8 0 R>>>>>>",
            page + 1
        ));
        objects.push(stream(String::new(), content.to_owned()));
    }
    for (content, next) in forms {
        let dictionary = format!("/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</N {next} 0 R>>>>");
        objects.push(stream(dictionary, (*content).to_owned()));
    }
    let mut out = b"%PDF-1.7\n".to_vec();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (index, object) in objects.iter().enumerate() {
        table.push_str(&format!("{:010} 00000 n \n", out.len()));
        out.extend_from_slice(format!("{} 0 obj\n{object}\nendobj\n", index + 1).as_bytes());
    }
    let xref = out.len();
    let size = objects.len() + 1;
    out.extend_from_slice(
        format!("{table}trailer\n<</Size {size}/Root 1 0 R>>\nstartxref\n{xref}\n%%EOF\n").as_bytes(),
    );
    out
}

/// A second page on which neither engine ends in time: forms in forms for the first, and for the second a heap of words
/// that it sorts in the square of their number.
fn endless() -> Vec<u8> {
    let ten = "/N Do ".repeat(10);
    let forms: Vec<(&str, usize)> = (0..12).map(|i| (if i < 11 { ten.as_str() } else { "q Q" }, 9 + i)).collect();
    let mut content = "/N Do BT /F 12 Tf".to_owned();
    let mut place = 7u32;
    for word in 0..60_000 {
        place = place.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        content.push_str(&format!(" 1 0 0 1 {} {} Tm (w{word}) Tj", place >> 8 & 511, place >> 18 & 511));
    }
    pdf_of(&(content + " ET"), &forms)
}

fn text(parsed: &Parsed) -> String {
    extract::chunk::document_text(&parsed.extracted)
}

#[tokio::test]
async fn a_document_is_parsed_in_a_process_of_its_own() {
    let parsed = parse(settings(), Format::Markdown, b"# Title\n\nsome text").await.unwrap();
    assert_eq!(text(&parsed), "Title\n\nsome text");
    assert_eq!(parsed.extracted.summary.title.as_deref(), Some("Title"));
    assert!(!parsed.extracted.partial_pages);
    assert!(parsed.ended_by.is_none());
}

#[tokio::test]
async fn a_verdict_against_the_document_is_its_code() {
    let failed = parse(settings(), Format::Pdf, b"%PDF-1.7 and nothing else").await;
    assert!(matches!(failed, Err(ParseError::Document(F::PdfCorrupt))), "{failed:?}");
}

#[tokio::test]
async fn what_one_engine_dies_of_the_other_reads() {
    let parsed = parse(settings(), Format::Pdf, &pdf(&[("/N Do", 8)])).await.unwrap();
    assert_eq!(text(&parsed), "hello");
    assert_eq!(parsed.ended_by, None);
    assert!(!parsed.extracted.partial_pages);
}

#[tokio::test]
async fn the_cpu_limit_and_the_deadline_have_codes_of_their_own() {
    let limits = ChildLimits { cpu_seconds: 1, ..ChildLimits::default() };
    let parsed = parse(ParserSettings { limits, ..settings() }, Format::Pdf, &endless()).await.unwrap();
    assert_eq!(parsed.ended_by, Some(F::ParserLimit));
    assert!(parsed.extracted.partial_pages);
    let hurry = ParserSettings { wall: Duration::from_secs(4), ..settings() };
    let parsed = parse(hurry, Format::Pdf, &endless()).await.unwrap();
    assert_eq!(parsed.ended_by, Some(F::ParserTimeout));
    assert_eq!(text(&parsed), "hello");
}

#[tokio::test]
async fn a_parser_without_a_page_gives_its_code() {
    let hurry = ParserSettings { wall: Duration::from_millis(300), ..settings() };
    let other_way_round = String::from_utf8_lossy(&endless()).replace("[4 0 R 6 0 R]", "[6 0 R 4 0 R]");
    let failed = parse(hurry, Format::Pdf, other_way_round.as_bytes()).await;
    assert!(matches!(failed, Err(ParseError::Document(F::ParserTimeout))), "{failed:?}");
}

#[tokio::test]
async fn cancelling_ends_the_process_and_leaves_no_child() {
    let cancel = CancellationToken::new();
    let parser = Parser::new(settings());
    let bytes = endless();
    let (parsed, ()) = tokio::join!(parser.parse(Format::Pdf, &bytes, &cancel), async {
        wait_for(|| !children().is_empty()).await;
        cancel.cancel();
    });
    assert!(matches!(parsed, Err(ParseError::Cancelled)), "{parsed:?}");
    assert!(children().is_empty());
}

#[tokio::test]
async fn dropping_the_future_ends_the_process() {
    let parser = Parser::new(settings());
    let bytes = endless();
    let cancel = CancellationToken::new();
    tokio::select! {
        parsed = parser.parse(Format::Pdf, &bytes, &cancel) => panic!("it ended by itself: {parsed:?}"),
        () = wait_for(|| !children().is_empty()) => {}
    }
    wait_for(|| children().is_empty()).await;
}

#[tokio::test]
async fn a_program_that_is_no_parser_is_told_apart_from_a_bad_document() {
    let missing = ParserSettings { program: PathBuf::from("/nowhere/parser"), ..settings() };
    assert!(matches!(parse(missing, Format::Text, b"x").await, Err(ParseError::Start(_))));
    let other = ParserSettings { program: PathBuf::from("/bin/false"), ..settings() };
    let failed = parse(other, Format::Text, &vec![b'x'; 1 << 20]).await;
    assert!(matches!(failed, Err(ParseError::Protocol { code: 1 })), "{failed:?}");
}

/// Parsers that this thread has started and that still run, or wait to be collected.
fn children() -> Vec<String> {
    let listed = std::fs::read_to_string("/proc/thread-self/children").unwrap();
    listed.split_whitespace().map(str::to_owned).collect()
}

async fn wait_for(condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "the condition did not come true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
