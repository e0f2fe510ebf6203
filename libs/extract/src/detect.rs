//! Which format a file has: its content first, its name second, its declared media type last.
//!
//! A name or a declared type may choose between formats that the content allows (Markdown or plain text), never
//! against it: a program called `report.pdf` is refused before anything of it is kept.

use domain::DocumentFailure;

use crate::{Format, decode};

/// How many bytes of the start of a file are enough for [`detect`]. More does no harm.
pub const HEAD_BYTES: usize = 8 * 1024;

/// ISO 32000-1, 7.5.2 puts the header first; readers accept it anywhere in the first kilobyte (implementation note 13
/// of the PDF 1.7 reference).
const PDF_HEADER_WITHIN: usize = 1024;

const OLE: &[u8] = &[0xD0, 0xCF, 0x11, 0xE0, 0xA1, 0xB1, 0x1A, 0xE1];

/// Extensions of formats that are never read as text, whatever their bytes look like.
const OTHER_BINARY: &[&str] = &[
    "7z", "avi", "bin", "bmp", "bz2", "class", "dll", "dmg", "docb", "exe", "gif", "gz", "heic", "iso", "jar", "jpeg",
    "jpg", "key", "mkv", "mov", "mp3", "mp4", "msi", "numbers", "o", "odp", "ods", "ogg", "pages", "parquet", "png",
    "psd", "pyc", "rar", "so", "sqlite", "tar", "tif", "tiff", "wasm", "wav", "webp", "woff", "xlsb", "xz", "zip",
    "zst",
];

/// What the first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Pdf,
    /// A ZIP archive, with what its first entries show.
    Zip(Package),
    /// An OLE compound file: a legacy office file, or an encrypted Office Open XML package.
    Ole,
    Rtf,
    /// Characters.
    Text,
    /// Anything else.
    Binary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Package {
    Of(Format),
    Other,
    Unknown,
}

/// Decides the format of a file from its name, its declared media type and its first bytes ([`HEAD_BYTES`] or the
/// whole file if it is shorter).
///
/// # Errors
/// [`DocumentFailure::EmptyFile`] without bytes, [`DocumentFailure::TypeMismatch`] when name or declared type
/// contradict the content, [`DocumentFailure::BinaryContent`] when a text format holds no text,
/// [`DocumentFailure::UnsupportedType`] for everything else that is not supported.
pub fn detect(file_name: &str, declared_media_type: Option<&str>, head: &[u8]) -> Result<Format, DocumentFailure> {
    if head.is_empty() {
        return Err(DocumentFailure::EmptyFile);
    }
    let extension = extension(file_name);
    let by_name = extension.as_deref().and_then(Format::from_extension);
    let by_type = declared_media_type.and_then(Format::from_media_type);
    // The name is what people see and rename; a declared type is often only derived from it, and wrongly.
    let wanted = by_name.or(by_type);
    let content = content(head);

    match content {
        Content::Pdf => match wanted {
            None | Some(Format::Pdf) if !names_other(extension.as_deref(), by_name) => Ok(Format::Pdf),
            _ => Err(DocumentFailure::TypeMismatch),
        },
        Content::Zip(package) => match (package, wanted) {
            (Package::Of(found), Some(wanted)) if found == wanted => Ok(found),
            // The parser finds out what the first bytes do not show.
            (Package::Unknown, Some(wanted)) if is_package(wanted) => Ok(wanted),
            (Package::Of(found), None) if !names_other(extension.as_deref(), by_name) => Ok(found),
            (_, Some(_)) | (Package::Of(_), None) => Err(DocumentFailure::TypeMismatch),
            (_, None) => Err(DocumentFailure::UnsupportedType),
        },
        // Which of them it is stands in the directory, which may be at the end of the file: the parser decides.
        Content::Ole => match wanted {
            Some(format @ (Format::Doc | Format::Ppt | Format::Xls)) => Ok(format),
            // A package with a password.
            Some(format @ (Format::Docx | Format::Pptx | Format::Xlsx)) => Ok(format),
            Some(_) => Err(DocumentFailure::TypeMismatch),
            None if extension.is_none() => compound(head).ok_or(DocumentFailure::UnsupportedType),
            None => Err(DocumentFailure::UnsupportedType),
        },
        Content::Rtf => match wanted {
            None | Some(Format::Rtf) if !names_other(extension.as_deref(), by_name) => Ok(Format::Rtf),
            _ => Err(DocumentFailure::TypeMismatch),
        },
        Content::Text => text(extension.as_deref(), wanted, declared_media_type, head),
        Content::Binary => match wanted {
            Some(format) if format.is_text() => Err(DocumentFailure::BinaryContent),
            Some(_) => Err(DocumentFailure::TypeMismatch),
            None => Err(DocumentFailure::UnsupportedType),
        },
    }
}

fn text(
    extension: Option<&str>,
    wanted: Option<Format>,
    declared: Option<&str>,
    head: &[u8],
) -> Result<Format, DocumentFailure> {
    match wanted {
        Some(Format::Mail) if !looks_like_mail(head) => Err(DocumentFailure::TypeMismatch),
        Some(format) if format.is_text() => Ok(format),
        Some(_) => Err(DocumentFailure::TypeMismatch),
        None if extension.is_some_and(|e| OTHER_BINARY.contains(&e)) => Err(DocumentFailure::UnsupportedType),
        None if looks_like_html(head) => Ok(Format::Html),
        None => match declared.map(|d| d.trim().to_ascii_lowercase()) {
            // Source code and configuration files come with many types, or with none.
            Some(d) if !(d.is_empty() || d.starts_with("text/") || d.starts_with("application/")) => {
                Err(DocumentFailure::UnsupportedType)
            }
            _ => Ok(Format::Text),
        },
    }
}

/// Whether the name says that the file is some format that this crate does not know.
fn names_other(extension: Option<&str>, by_name: Option<Format>) -> bool {
    by_name.is_none() && extension.is_some_and(|e| OTHER_BINARY.contains(&e))
}

fn extension(file_name: &str) -> Option<String> {
    let name = file_name.rsplit(['/', '\\']).next().unwrap_or_default();
    let (stem, extension) = name.rsplit_once('.')?;
    (!stem.is_empty() && !extension.is_empty()).then(|| extension.to_ascii_lowercase())
}

fn content(head: &[u8]) -> Content {
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return Content::Zip(package(head));
    }
    if head.starts_with(OLE) {
        return Content::Ole;
    }
    let start = head.get(..PDF_HEADER_WITHIN).unwrap_or(head);
    let at = start.windows(5).position(|w| w == b"%PDF-");
    let text = decode::looks_like_text(head);
    match at {
        Some(0) => Content::Pdf,
        // A text about PDF is not a PDF: leading rubbish is only believed before binary content, which nearly every
        // PDF announces in its second line.
        Some(_) if !text || is_pdf_preamble(start, at) => Content::Pdf,
        _ if head.starts_with(br"{\rtf") => Content::Rtf,
        _ if text => Content::Text,
        _ => Content::Binary,
    }
}

/// Only white space, a byte order mark or an HTTP-like preamble before the header, at the start of a line.
fn is_pdf_preamble(start: &[u8], at: Option<usize>) -> bool {
    let before = start.get(..at.unwrap_or(0)).unwrap_or_default();
    before.iter().all(|b| b.is_ascii_whitespace() || matches!(b, 0xEF | 0xBB | 0xBF | 0))
}

/// Reads the names in the local file headers that `head` shows (APPNOTE 4.3.7).
fn package(head: &[u8]) -> Package {
    let mut rest = head;
    let mut seen = Package::Unknown;
    while let Some(at) = rest.windows(4).position(|w| w == b"PK\x03\x04") {
        let entry = rest.get(at..).unwrap_or_default();
        let name_len = match entry.get(26..28) {
            Some([low, high]) => usize::from(u16::from_le_bytes([*low, *high])),
            _ => break,
        };
        let Some(name) = entry.get(30..30 + name_len) else { break };
        let folders = [(&b"word/"[..], Format::Docx), (b"ppt/", Format::Pptx), (b"xl/", Format::Xlsx)];
        if let Some((_, format)) = folders.iter().find(|(folder, _)| name.starts_with(folder)) {
            return Package::Of(*format);
        }
        if name == b"META-INF/container.xml" {
            return Package::Of(Format::Epub);
        }
        let stored = entry.get(8..10) == Some(&[0, 0]);
        if name == b"mimetype" && stored {
            // Stored and not compressed, so that it can be read here (EPUB OCF 3.3, 4.2.3; ODF 1.2 part 3, 3.3).
            let declared = entry.get(30 + name_len..).unwrap_or_default();
            let kinds = [
                (&b"application/epub+zip"[..], Format::Epub),
                (b"application/vnd.oasis.opendocument.textPK", Format::Odt),
                (b"application/vnd.oasis.opendocument.text-templatePK", Format::Odt),
            ];
            let found = kinds.iter().find(|(kind, _)| declared.starts_with(kind));
            return found.map_or(Package::Other, |(_, format)| Package::Of(*format));
        }
        let other = [&b"META-INF/MANIFEST.MF"[..], b"visio/", b"Index/"];
        if other.iter().any(|prefix| name.starts_with(prefix)) {
            return Package::Other;
        }
        // An Office Open XML package may start with its content types or with a folder of properties.
        let neutral = name == b"[Content_Types].xml"
            || [
                &b"_rels/"[..],
                b"docProps/",
                b"customXml/",
                b"customUI/",
                b"META-INF/",
                b"OEBPS/",
                b"OPS/",
                b"mimetype",
            ]
            .iter()
            .any(|p| name.starts_with(p));
        if !neutral {
            seen = Package::Other;
        }
        rest = entry.get(4..).unwrap_or_default();
    }
    seen
}

/// Formats that are ZIP packages.
fn is_package(format: Format) -> bool {
    matches!(format, Format::Docx | Format::Pptx | Format::Xlsx | Format::Odt | Format::Epub)
}

/// The stream that an OLE file must have, if its directory is among the first bytes (MS-DOC 2.1.1, MS-PPT 2.1.2,
/// MS-XLS 2.1.7.20.7).
fn compound(head: &[u8]) -> Option<Format> {
    let streams = [("WordDocument", Format::Doc), ("PowerPoint Document", Format::Ppt), ("Workbook", Format::Xls)];
    streams.into_iter().find_map(|(name, format)| {
        let wide: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        head.windows(wide.len()).any(|w| w == wide).then_some(format)
    })
}

/// A header field comes first (RFC 5322, 2.2), or the line that mailboxes put before it.
fn looks_like_mail(head: &[u8]) -> bool {
    let start = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head).trim_ascii_start();
    let line = start.split(|b| *b == b'\n').next().unwrap_or_default();
    let name = line.split(|b| *b == b':').next().unwrap_or_default();
    start.starts_with(b"From ")
        || (name.len() < line.len() && !name.is_empty() && name.iter().all(u8::is_ascii_graphic))
}

fn looks_like_html(head: &[u8]) -> bool {
    let start = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head);
    let start: Vec<u8> =
        start.iter().copied().skip_while(u8::is_ascii_whitespace).take(15).map(|b| b.to_ascii_lowercase()).collect();
    start.starts_with(b"<!doctype html") || start.starts_with(b"<html")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PDF: &[u8] = b"%PDF-1.7\n%\xE2\xE3\xCF\xD3\n1 0 obj\n";
    const EXE: &[u8] = b"MZ\x90\x00\x03\x00\x00\x00\x04\x00\x00\x00\xff\xff\x00\x00\xb8\x00";

    fn zip(names: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for name in names {
            out.extend_from_slice(b"PK\x03\x04");
            out.extend_from_slice(&[0; 22]);
            out.extend_from_slice(&u16::try_from(name.len()).unwrap().to_le_bytes());
            out.extend_from_slice(&[0; 2]);
            out.extend_from_slice(name.as_bytes());
        }
        out
    }

    #[test]
    fn content_wins_over_the_name() {
        assert_eq!(detect("a.pdf", None, PDF), Ok(Format::Pdf));
        assert_eq!(detect("a", None, PDF), Ok(Format::Pdf));
        assert_eq!(detect("a", Some("application/octet-stream"), PDF), Ok(Format::Pdf));
        for name in ["a.docx", "a.txt", "a.html", "a.exe"] {
            assert_eq!(detect(name, None, PDF), Err(DocumentFailure::TypeMismatch), "{name}");
        }
    }

    #[test]
    fn a_program_is_refused_under_any_name() {
        assert_eq!(detect("report.pdf", Some("application/pdf"), EXE), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("report.docx", None, EXE), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("report.txt", None, EXE), Err(DocumentFailure::BinaryContent));
        assert_eq!(detect("setup.exe", None, EXE), Err(DocumentFailure::UnsupportedType));
        assert_eq!(detect("setup", None, EXE), Err(DocumentFailure::UnsupportedType));
    }

    #[test]
    fn packages_are_told_apart_by_their_first_entries() {
        let word = zip(&["[Content_Types].xml", "_rels/.rels", "word/document.xml"]);
        let sheet = zip(&["[Content_Types].xml", "_rels/.rels", "xl/workbook.xml"]);
        let plain = zip(&["photos/1.jpg"]);
        let only_types = zip(&["[Content_Types].xml"]);
        assert_eq!(detect("a.docx", None, &word), Ok(Format::Docx));
        assert_eq!(detect("a", None, &word), Ok(Format::Docx));
        assert_eq!(detect("a.docx", None, &only_types), Ok(Format::Docx));
        assert_eq!(detect("a.docx", None, &sheet), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.docx", None, &plain), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.pdf", None, &word), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.xlsx", None, &sheet), Ok(Format::Xlsx));
        assert_eq!(detect("a.zip", None, &plain), Err(DocumentFailure::UnsupportedType));
    }

    #[test]
    fn text_formats_are_chosen_by_name_then_by_declared_type_then_by_look() {
        assert_eq!(detect("README.md", None, b"# hi"), Ok(Format::Markdown));
        assert_eq!(detect("notes", Some("text/markdown"), b"# hi"), Ok(Format::Markdown));
        assert_eq!(detect("notes.txt", Some("text/markdown"), b"# hi"), Ok(Format::Text));
        assert_eq!(detect("page", None, b"\n<!DOCTYPE html><p>hi"), Ok(Format::Html));
        assert_eq!(detect("main.rs", Some("text/x-rust"), b"fn main() {}"), Ok(Format::Text));
        assert_eq!(detect("a.pdf", None, b"just text"), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.xlsx", None, b"just text"), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.txt", None, b"the header %PDF-1.7 starts a PDF"), Ok(Format::Text));
    }

    #[test]
    fn text_in_other_encodings_is_still_text() {
        let utf16: Vec<u8> = "hello world".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(detect("a.txt", None, &utf16), Ok(Format::Text));
        assert_eq!(detect("a.csv", None, b"name;stra\xdfe\n"), Ok(Format::Csv));
        let (gbk, _, _) = encoding_rs::GBK.encode("黑豹队的防守");
        assert_eq!(detect("a.csv", None, &gbk), Ok(Format::Csv));
    }

    #[test]
    fn nothing_is_empty() {
        assert_eq!(detect("a.pdf", None, b""), Err(DocumentFailure::EmptyFile));
    }

    #[test]
    fn an_encrypted_package_is_left_to_the_parser() {
        let mut ole = OLE.to_vec();
        ole.extend_from_slice(&[0; 600]);
        assert_eq!(detect("a.docx", None, &ole), Ok(Format::Docx));
        assert_eq!(detect("a.doc", None, &ole), Ok(Format::Doc));
        assert_eq!(detect("a.msg", None, &ole), Err(DocumentFailure::UnsupportedType));
        ole.extend("WordDocument".encode_utf16().flat_map(u16::to_le_bytes));
        assert_eq!(detect("a", None, &ole), Ok(Format::Doc));
        assert_eq!(detect("a.txt", None, &ole), Err(DocumentFailure::TypeMismatch));
    }
    #[test]
    fn packages_that_name_their_type_and_other_signatures_are_believed() {
        let declared = |kind: &str| {
            let mut bytes = zip(&["mimetype"]);
            bytes.extend_from_slice(kind.as_bytes());
            bytes.extend_from_slice(b"PK\x03\x04");
            bytes
        };
        let epub = declared("application/epub+zip");
        let odt = declared("application/vnd.oasis.opendocument.text");
        let ods = declared("application/vnd.oasis.opendocument.spreadsheet");
        assert_eq!(detect("a.epub", None, &epub), Ok(Format::Epub));
        assert_eq!(detect("a", None, &odt), Ok(Format::Odt));
        assert_eq!(detect("a.odt", None, &epub), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.ods", None, &ods), Err(DocumentFailure::UnsupportedType));
        assert_eq!(detect("a.rtf", None, br"{\rtf1 x}"), Ok(Format::Rtf));
        assert_eq!(detect("a", None, br"{\rtf1 x}"), Ok(Format::Rtf));
        assert_eq!(detect("a.doc", None, br"{\rtf1 x}"), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.rtf", None, b"just text"), Err(DocumentFailure::TypeMismatch));
        assert_eq!(detect("a.eml", None, b"Subject: x\n\ntext"), Ok(Format::Mail));
        assert_eq!(detect("a.eml", None, b"no header here"), Err(DocumentFailure::TypeMismatch));
    }
}
