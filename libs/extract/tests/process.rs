//! The parser's process against hostile files, and against its own death.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of a test fail it by panicking")]

mod support;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use domain::DocumentFailure as F;
use ragmux_extract::protocol::{
    Arguments, ChildLimits, EXIT_INPUT, EXIT_ORPHANED, EXIT_USAGE, Frame, Header, SandboxPolicy,
};
use ragmux_extract::{Engine, Format};
use support::{CHILD, kill, parse, parse_by, parse_with, start};

/// A PDF of the given objects, numbered from 1; the first is the catalog.
fn pdf(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"%PDF-1.7\n%\xE2\xE3\xCF\xD3\n".to_vec();
    let mut offsets = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        offsets.push(out.len());
        out.extend_from_slice(format!("{} 0 obj\n", index + 1).as_bytes());
        out.extend_from_slice(object);
        out.extend_from_slice(b"\nendobj\n");
    }
    let xref = out.len();
    out.extend_from_slice(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).as_bytes());
    for offset in &offsets {
        out.extend_from_slice(format!("{offset:010} 00000 n \n").as_bytes());
    }
    let size = objects.len() + 1;
    out.extend_from_slice(format!("trailer\n<</Size {size}/Root 1 0 R>>\nstartxref\n{xref}\n%%EOF\n").as_bytes());
    out
}

fn stream(dictionary: &str, content: &[u8]) -> Vec<u8> {
    let mut out = format!("<<{dictionary}/Length {}>>\nstream\n", content.len()).into_bytes();
    out.extend_from_slice(content);
    out.extend_from_slice(b"\nendstream");
    out
}

/// Pages with the given contents; object 3 is a font called F, `forms` become objects from 4 on.
fn pages(contents: &[&str], resources: &str, forms: &[Vec<u8>]) -> Vec<u8> {
    let first = 4 + forms.len();
    let kids: Vec<String> = (0..contents.len()).map(|i| format!("{} 0 R", first + 2 * i)).collect();
    let mut objects = vec![
        b"<</Type/Catalog/Pages 2 0 R>>".to_vec(),
        format!("<</Type/Pages/Count {}/Kids[{}]>>", contents.len(), kids.join(" ")).into_bytes(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>".to_vec(),
    ];
    objects.extend_from_slice(forms);
    for (i, content) in contents.iter().enumerate() {
        let page = format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents {} 0 R/Resources<</Font<</F 3 0 R>>{resources}>>>>",
            first + 2 * i + 1
        );
        objects.push(page.into_bytes());
        objects.push(stream("", content.as_bytes()));
    }
    pdf(&objects)
}

const HELLO: &str = "BT /F 12 Tf 50 700 Td (hello first page) Tj ET";

fn small(cpu_seconds: u64) -> ChildLimits {
    ChildLimits { cpu_seconds, ..ChildLimits::default() }
}

/// Forms that draw the next one ten times: the last page takes 10^12 steps.
fn nested_forms() -> Vec<u8> {
    let forms: Vec<Vec<u8>> = (0..12)
        .map(|i| {
            let next = format!("/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</N {} 0 R>>>>", 5 + i);
            let last = "/Type/XObject/Subtype/Form/BBox[0 0 1 1]";
            if i < 11 { stream(&next, &b"/N Do ".repeat(10)) } else { stream(last, b"q Q") }
        })
        .collect();
    pages(&[HELLO, "/N Do"], "/XObject<</N 4 0 R>>", &forms)
}

#[test]
fn a_plain_page_is_read_in_a_confined_process() {
    let outcome = parse(Format::Pdf, &pages(&[HELLO], "", &[]));
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.text(), "hello first page");
    assert!(outcome.sandbox.is_some_and(|s| s.filter));
}

#[test]
fn a_form_that_draws_itself_overflows_only_the_child_and_earlier_pages_are_kept() {
    let form = stream("/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</N 4 0 R>>>>", b"/N Do");
    let outcome = parse(Format::Pdf, &pages(&[HELLO, "/N Do"], "/XObject<</N 4 0 R>>", &[form]));
    assert!(outcome.died);
    assert_eq!(outcome.result, Err(F::ParserCrashed));
    assert_eq!(outcome.text(), "hello first page");
}

#[test]
fn a_page_without_end_reaches_the_cpu_limit_and_earlier_pages_are_kept() {
    let outcome = parse_with(Format::Pdf, &nested_forms(), small(1), |_, _| ());
    assert!(outcome.died);
    assert_eq!(outcome.result, Err(F::ParserLimit));
    assert_eq!(outcome.text(), "hello first page");
}

#[test]
fn a_killed_parser_leaves_the_pages_it_sent() {
    let outcome = parse_with(Format::Pdf, &nested_forms(), small(30), |pid, frame| {
        if matches!(frame, Frame::Page(_)) {
            kill(pid);
        }
    });
    assert_eq!(outcome.result, Err(F::ParserCrashed));
    assert_eq!(outcome.text(), "hello first page");
}

#[test]
fn a_stream_that_inflates_without_bound_reaches_the_memory_limit() {
    // A megabyte of operators inflates to tens of millions of them.
    let bomb = zlib_of(b"q ", 64 << 20);
    assert!(bomb.len() < 1 << 20);
    let form = stream("/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Filter/FlateDecode", &bomb);
    let limits = ChildLimits { address_space_bytes: 700 << 20, ..small(60) };
    let bytes = pages(&[HELLO, "/N Do"], "/XObject<</N 4 0 R>>", &[form]);
    let outcome = parse_with(Format::Pdf, &bytes, limits, |_, _| ());
    assert_eq!(outcome.result, Err(F::ParserLimit));
    assert_eq!(outcome.text(), "hello first page");
}

/// A zlib stream (RFC 1950) around the deflated data of a ZIP entry, so that no further library is needed.
fn zlib_of(pattern: &[u8; 2], length: usize) -> Vec<u8> {
    let block = pattern.repeat(1 << 19);
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    out.start_file("x", zip::write::SimpleFileOptions::default()).unwrap();
    for _ in 0..length / block.len() {
        out.write_all(&block).unwrap();
    }
    let mut archive = zip::ZipArchive::new(out.finish().unwrap()).unwrap();
    let mut bytes = vec![0x78, 0x9c];
    archive.by_index_raw(0).unwrap().read_to_end(&mut bytes).unwrap();
    let (a, b) = (0..length).fold((1u64, 0u64), |(a, b), i| {
        let a = (a + u64::from(block[i % 2])) % 65_521;
        (a, (b + a) % 65_521)
    });
    bytes.extend_from_slice(&u32::try_from(b << 16 | a).unwrap().to_be_bytes());
    bytes
}

#[test]
fn arrays_nested_a_hundred_thousand_deep_end_with_a_code() {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let objects =
        vec![b"<</Type/Catalog/Pages 2 0 R/X 3 0 R>>".to_vec(), b"<</Type/Pages/Count 0/Kids[]>>".to_vec(), deep];
    let outcome = parse(Format::Pdf, &pdf(&objects));
    assert!(matches!(outcome.result, Err(F::PdfCorrupt | F::ParserCrashed)), "{:?}", outcome.result);
}

#[test]
fn the_second_engine_reads_what_the_first_dies_of() {
    let form = stream("/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</N 4 0 R>>>>", b"/N Do");
    let bytes = pages(&[HELLO, "/N Do", HELLO], "/XObject<</N 4 0 R>>", &[form]);
    let outcome = parse_by(Engine::Second, &bytes, small(20));
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.text(), "hello first page hello first page");
    assert_eq!(outcome.extracted.summary.engine, "pdf_oxide");
}

#[test]
fn two_thousand_pages_are_read_and_one_more_is_refused() {
    let all = vec![HELLO; 2_000];
    let outcome = parse(Format::Pdf, &pages(&all, "", &[]));
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.extracted.pages.len(), 2_000);
    let outcome = parse(Format::Pdf, &pages(&vec![HELLO; 2_001], "", &[]));
    assert_eq!(outcome.result, Err(F::TooManyPages));
}

#[test]
fn one_bad_page_costs_only_itself() {
    let outcome = parse(Format::Pdf, &pages(&[HELLO, "BT /Nowhere 12 Tf (x) Tj ET", HELLO], "", &[]));
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.extracted.summary.failed_pages, 1);
    let numbers: Vec<Option<u32>> =
        outcome.extracted.pages.iter().filter(|p| p.text_bytes() > 0).map(|p| p.number).collect();
    assert_eq!(numbers, [Some(1), Some(3)]);
}

#[test]
fn the_confined_process_can_use_memory_and_nothing_else() {
    let output = Command::new(CHILD).arg("probe").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("filter=true"), "{said}");
    assert!(said.contains("use memory=true"), "{said}");
    for what in
        ["read a file", "write a file", "list a folder", "listen", "connect", "start a process", "start a thread"]
    {
        assert!(said.contains(&format!("{what}=false")), "{said}");
    }
    assert!(!Path::new("/dev/shm/extract-probe").exists());
}

#[test]
fn a_child_with_another_parent_ends_at_once() {
    let mut child = start(&Arguments { parent: 1, limits: ChildLimits::default() });
    assert_eq!(child.wait().unwrap().code(), Some(i32::from(EXIT_ORPHANED)));
}

#[test]
fn a_child_dies_with_its_parent() {
    let arguments = Arguments { parent: 0, limits: ChildLimits::default() }.to_args();
    let script = format!("exec 3<&0; \"$0\" {} $$ {} {} <&3 & echo $!; wait", arguments[0], arguments[2], arguments[3]);
    let mut parent =
        Command::new("sh").args(["-c", &script, CHILD]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    let mut byte = [0];
    let out = parent.stdout.as_mut().unwrap();
    while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        pid.push(byte[0] as char);
    }
    // Its first frame says that it has tied itself to the shell.
    let header = Header { format: Format::Text, length: 10, sandbox: SandboxPolicy::BestEffort, engine: Engine::First };
    parent.stdin.as_mut().unwrap().write_all(&header.to_line()).unwrap();
    let mut frame = [0; 4];
    parent.stdout.as_mut().unwrap().read_exact(&mut frame).unwrap();
    let process = format!("/proc/{pid}");
    assert!(Path::new(&process).exists());
    parent.kill().unwrap();
    parent.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_running(&process) {
        assert!(Instant::now() < deadline, "the child outlived its parent");
        std::thread::yield_now();
    }
}

/// Whether the process is there and more than a name waiting to be collected.
fn is_running(process: &str) -> bool {
    std::fs::read_to_string(format!("{process}/stat"))
        .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with(['Z', 'X'])))
}

#[test]
fn input_that_ends_early_and_headers_without_sense_have_their_exit_codes() {
    let arguments = Arguments { parent: std::process::id(), limits: ChildLimits::default() };
    let header = Header { format: Format::Text, length: 10, sandbox: SandboxPolicy::BestEffort, engine: Engine::First };
    for (input, code) in [([header.to_line(), b"short".to_vec()].concat(), EXIT_INPUT), (b"{}\n".to_vec(), EXIT_USAGE)]
    {
        let mut child = start(&arguments);
        child.stdin.take().unwrap().write_all(&input).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(i32::from(code)));
    }
    let status = Command::new(CHILD).args(["extract", "x"]).status().unwrap();
    assert_eq!(status.code(), Some(i32::from(EXIT_USAGE)));
}

#[test]
fn a_zip_that_inflates_without_bound_is_refused_before_it_is_parsed() {
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    out.start_file("word/document.xml", zip::write::SimpleFileOptions::default()).unwrap();
    for _ in 0..64 {
        out.write_all(&vec![b' '; 1 << 20]).unwrap();
    }
    let bytes = out.finish().unwrap().into_inner();
    assert_eq!(parse(Format::Docx, &bytes).result, Err(F::ArchiveBomb));
}

#[test]
fn xml_nested_without_bound_ends_with_a_code() {
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    out.start_file("word/document.xml", zip::write::SimpleFileOptions::default()).unwrap();
    out.write_all(b"<w:document xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\"><w:body>")
        .unwrap();
    out.write_all("<w:p>".repeat(100_000).as_bytes()).unwrap();
    let bytes = out.finish().unwrap().into_inner();
    let result = parse(Format::Docx, &bytes).result;
    assert!(matches!(result, Err(F::ParserLimit | F::Corrupt | F::ArchiveBomb)), "{result:?}");
}

#[test]
fn what_a_parser_gets_wrong_in_other_ways_is_refused() {
    assert_eq!(parse(Format::Text, b"\0\x01\x02\x03\0\x07\0\x10").result, Err(F::BinaryContent));
    assert_eq!(parse(Format::Html, b"<script>only code</script>").result, Err(F::NoText));
    assert_eq!(parse(Format::Text, b" \n ").result, Err(F::NoText));
    assert_eq!(parse(Format::Text, &vec![b'x'; 21 << 20]).result, Err(F::TextTooLarge));
}
