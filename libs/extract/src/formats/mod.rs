//! One file a format.

mod html;
mod json;
mod mail;
mod markdown;
mod office;
mod pdf;
mod plain;
mod records;
mod sheet;
mod values;

use domain::DocumentFailure;

use crate::{Engine, ExtractError, Format, PageSink, Summary, emit::Emitter};

/// Turns the bytes of a document into pages, handing each to `sink` as soon as it is complete. `engine` is which of two
/// reads a PDF.
///
/// This runs parsers that are known to loop, to overflow their stack and to run out of memory on hostile files, so
/// outside of tests it is called in the parser's own process (see [`crate::child`]).
///
/// # Errors
/// [`ExtractError::Document`] with the document's stable code; pages handed on before it are good.
/// [`ExtractError::Output`] when `sink` fails.
pub fn extract(format: Format, engine: Engine, bytes: &[u8], sink: &mut PageSink<'_>) -> Result<Summary, ExtractError> {
    if bytes.is_empty() {
        return Err(DocumentFailure::EmptyFile.into());
    }
    let mut emitter = Emitter::new(sink);
    let summary = match format {
        Format::Pdf => pdf::extract(engine, bytes, &mut emitter),
        Format::Docx => office::extract(anydoc::Format::Docx, bytes, &mut emitter),
        Format::Doc => office::extract(anydoc::Format::Doc, bytes, &mut emitter),
        Format::Pptx => office::extract(anydoc::Format::Pptx, bytes, &mut emitter),
        Format::Ppt => office::extract(anydoc::Format::Ppt, bytes, &mut emitter),
        Format::Odt => office::extract(anydoc::Format::Odt, bytes, &mut emitter),
        Format::Epub => office::extract(anydoc::Format::Epub, bytes, &mut emitter),
        Format::Rtf => office::extract(anydoc::Format::Rtf, bytes, &mut emitter),
        Format::Xlsx => sheet::xlsx(bytes, &mut emitter),
        Format::Xls => sheet::xls(bytes, &mut emitter),
        Format::Csv => values::extract(bytes, &mut emitter),
        Format::Json => json::extract(bytes, &mut emitter),
        Format::Mail => mail::extract(bytes, &mut emitter),
        Format::Html => html::extract(bytes, &mut emitter),
        Format::Markdown => markdown::extract(bytes, &mut emitter),
        Format::Text => plain::extract(bytes, &mut emitter),
    }?;
    if emitter.has_text() { Ok(summary) } else { Err(DocumentFailure::NoText.into()) }
}
