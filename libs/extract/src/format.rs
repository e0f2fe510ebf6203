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
    /// HTML or XHTML.
    Html,
    /// Markdown (CommonMark with tables).
    Markdown,
    /// Plain text.
    Text,
    /// Values separated by commas or tabs, read as plain text.
    Csv,
    /// JSON or JSON lines, read as plain text.
    Json,
}

impl Format {
    /// All of them.
    pub const ALL: &'static [Self] =
        &[Self::Pdf, Self::Docx, Self::Html, Self::Markdown, Self::Text, Self::Csv, Self::Json];

    /// The name in the database, on the APIs and in the parser's protocol.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pdf => "pdf",
            Self::Docx => "docx",
            Self::Html => "html",
            Self::Markdown => "markdown",
            Self::Text => "text",
            Self::Csv => "csv",
            Self::Json => "json",
        }
    }

    /// The registered media type (IANA), which the APIs answer with.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Pdf => "application/pdf",
            Self::Docx => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            Self::Html => "text/html",
            Self::Markdown => "text/markdown",
            Self::Text => "text/plain",
            Self::Csv => "text/csv",
            Self::Json => "application/json",
        }
    }

    /// Whether the bytes are characters in some encoding rather than a binary container.
    #[must_use]
    pub fn is_text(self) -> bool {
        !matches!(self, Self::Pdf | Self::Docx)
    }

    /// The format an extension names: without the dot, in any case.
    #[must_use]
    pub fn from_extension(extension: &str) -> Option<Self> {
        Some(match extension.to_ascii_lowercase().as_str() {
            "pdf" => Self::Pdf,
            "docx" | "docm" => Self::Docx,
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
