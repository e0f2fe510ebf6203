//! Packages and texts that are broken or mean harm, made here.

use std::io::{Cursor, Write};

use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// A ZIP archive of the given entries.
pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let stored = *name == "mimetype";
        let method = if stored { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        out.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        out.write_all(bytes).unwrap();
    }
    out.finish().unwrap().into_inner()
}

const RELATIONS: &str = r#"<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">"#;
const OFFICE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";

fn main_part(target: &str) -> String {
    format!("{RELATIONS}<Relationship Id=\"r1\" Type=\"{OFFICE}/officeDocument\" Target=\"{target}\"/></Relationships>")
}

/// A text document with this document part.
pub(crate) fn docx(document: &str) -> Vec<u8> {
    zip(&[("_rels/.rels", main_part("word/document.xml").as_bytes()), ("word/document.xml", document.as_bytes())])
}

/// The document part around a body.
pub(crate) fn word(body: &str) -> String {
    format!(
        "<w:document xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\"><w:body>{body}</w:body></w:document>"
    )
}

pub(crate) fn paragraph(text: &str) -> String {
    format!("<w:p><w:r><w:t>{text}</w:t></w:r></w:p>")
}

/// A workbook with one sheet called Prices and these shared strings.
pub(crate) fn xlsx(sheet: &str, strings: &str) -> Vec<u8> {
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let book = format!(
        "<workbook xmlns=\"{main}\" xmlns:r=\"{OFFICE}\"><sheets><sheet name=\"Prices\" sheetId=\"1\" r:id=\"r1\"/></sheets></workbook>"
    );
    let relations = format!(
        "{RELATIONS}<Relationship Id=\"r1\" Type=\"{OFFICE}/worksheet\" Target=\"worksheets/sheet1.xml\"/>\
         <Relationship Id=\"r2\" Type=\"{OFFICE}/sharedStrings\" Target=\"sharedStrings.xml\"/></Relationships>"
    );
    let types = "<Types xmlns=\"http://schemas.openxmlformats.org/package/2006/content-types\">\
        <Default Extension=\"xml\" ContentType=\"application/xml\"/><Override PartName=\"/xl/workbook.xml\" \
        ContentType=\"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml\"/></Types>";
    zip(&[
        ("[Content_Types].xml", types.as_bytes()),
        ("_rels/.rels", main_part("xl/workbook.xml").as_bytes()),
        ("xl/workbook.xml", book.as_bytes()),
        ("xl/_rels/workbook.xml.rels", relations.as_bytes()),
        (
            "xl/worksheets/sheet1.xml",
            format!("<worksheet xmlns=\"{main}\"><sheetData>{sheet}</sheetData></worksheet>").as_bytes(),
        ),
        ("xl/sharedStrings.xml", strings.as_bytes()),
    ])
}

/// Shared strings around these items.
pub(crate) fn strings(items: &[&str]) -> String {
    let items: String = items.iter().map(|item| format!("<si><t>{item}</t></si>")).collect();
    format!("<sst xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\">{items}</sst>")
}

/// A presentation with one slide that has a title, a text and notes.
pub(crate) fn pptx() -> Vec<u8> {
    let a = "http://schemas.openxmlformats.org/drawingml/2006/main";
    let p = "http://schemas.openxmlformats.org/presentationml/2006/main";
    let shape = |kind: &str, text: &str| {
        format!(
            "<p:sp><p:nvSpPr><p:cNvPr id=\"2\" name=\"x\"/><p:cNvSpPr/><p:nvPr><p:ph type=\"{kind}\"/></p:nvPr></p:nvSpPr>\
             <p:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sp>"
        )
    };
    let tree = |root: &str, shapes: String| {
        format!("<p:{root} xmlns:p=\"{p}\" xmlns:a=\"{a}\"><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:{root}>")
    };
    let presentation = format!(
        "<p:presentation xmlns:p=\"{p}\" xmlns:r=\"{OFFICE}\"><p:sldIdLst><p:sldId id=\"256\" r:id=\"r1\"/></p:sldIdLst></p:presentation>"
    );
    let relation = |kind: &str, target: &str| {
        format!("{RELATIONS}<Relationship Id=\"r1\" Type=\"{OFFICE}/{kind}\" Target=\"{target}\"/></Relationships>")
    };
    zip(&[
        ("_rels/.rels", main_part("ppt/presentation.xml").as_bytes()),
        ("ppt/presentation.xml", presentation.as_bytes()),
        ("ppt/_rels/presentation.xml.rels", relation("slide", "slides/slide1.xml").as_bytes()),
        ("ppt/slides/slide1.xml", tree("sld", shape("title", "Plan") + &shape("body", "First we measure")).as_bytes()),
        ("ppt/slides/_rels/slide1.xml.rels", relation("notesSlide", "../notesSlides/notesSlide1.xml").as_bytes()),
        ("ppt/notesSlides/notesSlide1.xml", tree("notes", shape("body", "Say it slowly")).as_bytes()),
    ])
}

/// An `OpenDocument` text with this content part.
pub(crate) fn odt(content: &str) -> Vec<u8> {
    zip(&[("mimetype", b"application/vnd.oasis.opendocument.text"), ("content.xml", content.as_bytes())])
}

/// The content part around a body.
pub(crate) fn open_text(before: &str, body: &str) -> String {
    format!(
        "{before}<office:document-content xmlns:office=\"urn:oasis:names:tc:opendocument:xmlns:office:1.0\" \
         xmlns:text=\"urn:oasis:names:tc:opendocument:xmlns:text:1.0\"><office:body><office:text>{body}</office:text>\
         </office:body></office:document-content>"
    )
}

/// An e-book of one chapter.
pub(crate) fn epub(chapter: &str) -> Vec<u8> {
    let container = "<container xmlns=\"urn:oasis:names:tc:opendocument:xmlns:container\" version=\"1.0\"><rootfiles>\
        <rootfile full-path=\"OEBPS/book.opf\" media-type=\"application/oebps-package+xml\"/></rootfiles></container>";
    let package = "<package xmlns=\"http://www.idpf.org/2007/opf\" version=\"3.0\"><metadata \
        xmlns:dc=\"http://purl.org/dc/elements/1.1/\"><dc:title>The Book</dc:title></metadata><manifest><item id=\"c\" \
        href=\"c.xhtml\" media-type=\"application/xhtml+xml\"/></manifest><spine><itemref idref=\"c\"/></spine></package>";
    zip(&[
        ("mimetype", b"application/epub+zip"),
        ("META-INF/container.xml", container.as_bytes()),
        ("OEBPS/book.opf", package.as_bytes()),
        ("OEBPS/c.xhtml", chapter.as_bytes()),
    ])
}

pub(crate) fn chapter(before: &str, body: &str) -> String {
    format!("{before}<html xmlns=\"http://www.w3.org/1999/xhtml\"><body>{body}</body></html>")
}

/// Ten names, each ten times the one before: a thousand million laughs.
pub(crate) fn laughs() -> String {
    let mut out = "<!DOCTYPE x [<!ENTITY l0 \"ha\">".to_owned();
    for i in 1..10 {
        out.push_str(&format!("<!ENTITY l{i} \"{}\">", format!("&l{};", i - 1).repeat(10)));
    }
    out + "]>"
}

/// A name for a file of the machine.
pub(crate) fn thief() -> &'static str {
    "<!DOCTYPE x [<!ENTITY thief SYSTEM \"file:///etc/passwd\">]>"
}

/// An entry that inflates to 64 MiB of spaces.
pub(crate) fn inflating(name: &str) -> Vec<u8> {
    zip(&[(name, &vec![b' '; 64 << 20])])
}

/// The same, with directory and header claiming a kilobyte.
pub(crate) fn inflating_in_secret(name: &str) -> Vec<u8> {
    let mut bytes = inflating(name);
    let real = (64u32 << 20).to_le_bytes();
    let positions: Vec<usize> = (0..bytes.len() - 4).filter(|at| bytes[*at..at + 4] == real).collect();
    for at in positions {
        bytes[at..at + 4].copy_from_slice(&1024u32.to_le_bytes());
    }
    bytes
}

/// More entries than any document has.
pub(crate) fn crowded(name: &str) -> Vec<u8> {
    let mut out = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for i in 0..10_001 {
        out.start_file(format!("{name}{i}"), stored).unwrap();
    }
    out.finish().unwrap().into_inner()
}

/// An OLE file whose tables point at each other.
pub(crate) fn compound_noise() -> Vec<u8> {
    let mut bytes = vec![0xD0, 0xCF, 0x11, 0xE0, 0xA1, 0xB1, 0x1A, 0xE1];
    bytes.extend(super::pdf::random(3).take(20_000));
    bytes
}
