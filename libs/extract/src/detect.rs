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
    "7z", "avi", "bin", "bmp", "bz2", "class", "dll", "dmg", "doc", "docb", "dot", "epub", "exe", "gif", "gz", "heic",
    "iso", "jar", "jpeg", "jpg", "key", "mkv", "mov", "mp3", "mp4", "msi", "numbers", "o", "odp", "ods", "odt", "ogg",
    "pages", "parquet", "png", "pps", "ppt", "pptx", "psd", "pyc", "rar", "rtf", "so", "sqlite", "tar", "tif", "tiff",
    "wasm", "wav", "webp", "woff", "xls", "xlsb", "xlsm", "xlsx", "xz", "zip", "zst",
];

/// What the first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Pdf,
    /// A ZIP archive, with what its first entries show.
    Zip(Package),
    /// An OLE compound file: a legacy office file, or an encrypted Office Open XML package.
    Ole,
    /// Characters.
    Text,
    /// Anything else.
    Binary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Package {
    Word,
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
            (Package::Word | Package::Unknown, Some(Format::Docx)) => Ok(Format::Docx),
            (Package::Word, None) if !names_other(extension.as_deref(), by_name) => Ok(Format::Docx),
            (_, Some(_)) | (Package::Word, None) => Err(DocumentFailure::TypeMismatch),
            (_, None) => Err(DocumentFailure::UnsupportedType),
        },
        // Which of the two it is stands in the directory, which may be at the end of the file: the parser decides.
        Content::Ole => match wanted {
            Some(Format::Docx) => Ok(Format::Docx),
            Some(_) => Err(DocumentFailure::TypeMismatch),
            None => Err(DocumentFailure::UnsupportedType),
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
        _ if head.starts_with(br"{\rtf") => Content::Binary,
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
        if name.starts_with(b"word/") {
            return Package::Word;
        }
        let other = [&b"xl/"[..], b"ppt/", b"META-INF/", b"visio/", b"Index/"];
        if name == b"mimetype" || other.iter().any(|prefix| name.starts_with(prefix)) {
            return Package::Other;
        }
        // An Office Open XML package may start with its content types or with a folder of properties.
        let neutral = name == b"[Content_Types].xml"
            || [&b"_rels/"[..], b"docProps/", b"customXml/", b"customUI/"].iter().any(|p| name.starts_with(p));
        if !neutral {
            seen = Package::Other;
        }
        rest = entry.get(4..).unwrap_or_default();
    }
    seen
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
        assert_eq!(detect("a.xlsx", None, &sheet), Err(DocumentFailure::UnsupportedType));
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
        assert_eq!(detect("a.xlsx", None, b"just text"), Err(DocumentFailure::UnsupportedType));
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
        assert_eq!(detect("a.doc", None, &ole), Err(DocumentFailure::UnsupportedType));
        assert_eq!(detect("a.txt", None, &ole), Err(DocumentFailure::TypeMismatch));
    }
}
