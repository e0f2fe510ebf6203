//! The document formats and their names.

use serde::{Deserialize, Serialize};

/// A format this crate turns into text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Portable Document Format.
    Pdf,
    /// Office Open XML text document.
    Docx,
    /// Office Open XML presentation.
    Pptx,
    /// Office Open XML workbook.
    Xlsx,
    /// Word 97 to 2003.
    Doc,
    /// PowerPoint 97 to 2003.
    Ppt,
    /// Excel 97 to 2003.
    Xls,
    /// `OpenDocument` text.
    Odt,
    /// EPUB 2 or 3.
    Epub,
    /// Rich Text Format.
    Rtf,
    /// HTML or XHTML.
    Html,
    /// Markdown (CommonMark with tables).
    Markdown,
    /// Plain text.
    Text,
    /// Values separated by commas, tabs, semicolons or bars, read as records.
    Csv,
    /// JSON or JSON lines, read as records.
    Json,
    /// An electronic mail (RFC 5322) with its MIME parts.
    #[serde(rename = "eml")]
    Mail,
}

impl Format {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Pdf,
        Self::Docx,
        Self::Pptx,
        Self::Xlsx,
        Self::Doc,
        Self::Ppt,
        Self::Xls,
        Self::Odt,
        Self::Epub,
        Self::Rtf,
        Self::Html,
        Self::Markdown,
        Self::Text,
        Self::Csv,
        Self::Json,
        Self::Mail,
    ];

    /// The name in the database, on the APIs and in the parser's protocol.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pdf => "pdf",
            Self::Docx => "docx",
            Self::Pptx => "pptx",
            Self::Xlsx => "xlsx",
            Self::Doc => "doc",
            Self::Ppt => "ppt",
            Self::Xls => "xls",
            Self::Odt => "odt",
            Self::Epub => "epub",
            Self::Rtf => "rtf",
            Self::Html => "html",
            Self::Markdown => "markdown",
            Self::Text => "text",
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Mail => "eml",
        }
    }

    /// The registered media type (IANA), which the APIs answer with.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Pdf => "application/pdf",
            Self::Docx => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            Self::Pptx => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
            Self::Xlsx => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            Self::Doc => "application/msword",
            Self::Ppt => "application/vnd.ms-powerpoint",
            Self::Xls => "application/vnd.ms-excel",
            Self::Odt => "application/vnd.oasis.opendocument.text",
            Self::Epub => "application/epub+zip",
            Self::Rtf => "application/rtf",
            Self::Html => "text/html",
            Self::Markdown => "text/markdown",
            Self::Text => "text/plain",
            Self::Csv => "text/csv",
            Self::Json => "application/json",
            Self::Mail => "message/rfc822",
        }
    }

    /// Whether the bytes are characters in some encoding rather than a binary container.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Html | Self::Markdown | Self::Text | Self::Csv | Self::Json | Self::Mail)
    }

    /// The format an extension names: without the dot, in any case.
    #[must_use]
    pub fn from_extension(extension: &str) -> Option<Self> {
        Some(match extension.to_ascii_lowercase().as_str() {
            "pdf" => Self::Pdf,
            "docx" | "docm" => Self::Docx,
            "pptx" | "pptm" | "ppsx" => Self::Pptx,
            "xlsx" | "xlsm" => Self::Xlsx,
            "doc" | "dot" => Self::Doc,
            "ppt" | "pps" => Self::Ppt,
            "xls" => Self::Xls,
            "odt" => Self::Odt,
            "epub" => Self::Epub,
            "rtf" => Self::Rtf,
            "eml" => Self::Mail,
            "html" | "htm" | "xhtml" => Self::Html,
            "md" | "markdown" | "mkd" | "mdown" => Self::Markdown,
            "txt" | "text" | "log" | "rst" | "adoc" => Self::Text,
            "csv" | "tsv" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            _ => return None,
        })
    }

    /// The format a media type names; parameters such as a charset are ignored.
    #[must_use]
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        Some(match essence.as_str() {
            "application/pdf" | "application/x-pdf" => Self::Pdf,
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
            | "application/vnd.ms-word.document.macroenabled.12" => Self::Docx,
            "application/vnd.openxmlformats-officedocument.presentationml.presentation"
            | "application/vnd.ms-powerpoint.presentation.macroenabled.12"
            | "application/vnd.openxmlformats-officedocument.presentationml.slideshow" => Self::Pptx,
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
            | "application/vnd.ms-excel.sheet.macroenabled.12" => Self::Xlsx,
            "application/msword" => Self::Doc,
            "application/vnd.ms-powerpoint" => Self::Ppt,
            "application/vnd.ms-excel" => Self::Xls,
            "application/vnd.oasis.opendocument.text" => Self::Odt,
            "application/epub+zip" => Self::Epub,
            "application/rtf" | "text/rtf" | "application/x-rtf" => Self::Rtf,
            "message/rfc822" => Self::Mail,
            "text/html" | "application/xhtml+xml" => Self::Html,
            "text/markdown" | "text/x-markdown" => Self::Markdown,
            "text/plain" => Self::Text,
            "text/csv" | "text/tab-separated-values" => Self::Csv,
            "application/json" | "application/x-ndjson" | "application/jsonl" => Self::Json,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_found_again_by_its_media_type() {
        for format in Format::ALL {
            assert_eq!(Format::from_media_type(format.media_type()), Some(*format));
        }
        assert_eq!(Format::from_media_type("Text/HTML; charset=utf-8"), Some(Format::Html));
    }

    #[test]
    fn the_wire_name_is_the_name() {
        for format in Format::ALL {
            assert_eq!(serde_json::to_string(format).unwrap(), format!("\"{}\"", format.as_str()));
        }
    }
}
