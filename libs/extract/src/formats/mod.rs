//! One file a format.

mod docx;
mod html;
mod markdown;
mod pdf;
mod plain;

use domain::DocumentFailure;

use crate::{ExtractError, Format, PageSink, Summary, emit::Emitter};

/// Turns the bytes of a document into pages, handing each to `sink` as soon as it is complete.
///
/// This runs parsers that are known to loop, to overflow their stack and to run out of memory on hostile files, so
/// outside of tests it is called in the parser's own process (see [`crate::child`]).
///
/// # Errors
/// [`ExtractError::Document`] with the document's stable code; pages handed on before it are good.
/// [`ExtractError::Output`] when `sink` fails.
pub fn extract(format: Format, bytes: &[u8], sink: &mut PageSink<'_>) -> Result<Summary, ExtractError> {
    if bytes.is_empty() {
        return Err(DocumentFailure::EmptyFile.into());
    }
    let mut emitter = Emitter::new(sink);
    let summary = match format {
        Format::Pdf => pdf::extract(bytes, &mut emitter),
        Format::Docx => docx::extract(bytes, &mut emitter),
        Format::Html => html::extract(bytes, &mut emitter),
        Format::Markdown => markdown::extract(bytes, &mut emitter),
        Format::Text | Format::Csv | Format::Json => plain::extract(bytes, &mut emitter),
    }?;
    if emitter.has_text() { Ok(summary) } else { Err(DocumentFailure::NoText.into()) }
}
