//! The second engine: `pdf_oxide`, which rebuilds cross-references and has the predefined character maps.

use std::panic::{AssertUnwindSafe, catch_unwind};

use domain::DocumentFailure;
use pdf_oxide::PdfDocument;
use pdf_oxide::error::Error;
use pdf_oxide::object::Object;

use super::{Pages, names::Drawn, title_of};
use crate::{
    ExtractError, Summary,
    emit::{Emitter, MAX_PAGE_TEXT_BYTES},
    sanity::Tally,
};

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let document = open(bytes)?;
    let count = guarded(|| document.page_count()).map_err(|error| match error {
        Some(Error::EncryptedPdf) => DocumentFailure::PdfEncrypted,
        _ => DocumentFailure::PdfCorrupt,
    })?;
    let mut pages = Pages::new(count, emitter)?;
    for (index, number) in (0..count).zip(1u32..) {
        let read = guarded(|| document.extract_text(index));
        let mut tally = Tally { failed: read.is_err(), ..Tally::default() };
        let text = read.unwrap_or_default();
        let drawn = catch_unwind(AssertUnwindSafe(|| Drawn::of_page(&document, index)));
        let text = if let Ok(drawn) = drawn { drawn.read(text) } else { text };
        if text.len() > MAX_PAGE_TEXT_BYTES {
            return Err(DocumentFailure::PageTextTooLarge.into());
        }
        if !text.is_empty() {
            tally.count(&text);
        }
        pages.page(number, &text, tally)?;
    }
    pages.finish(title(&document), "pdf_oxide")
}

/// Opens the document, with the empty password if it has one. It answers a file it cannot decrypt with empty pages, so
/// that is decided before any page is read.
fn open(bytes: &[u8]) -> Result<PdfDocument, DocumentFailure> {
    let document = guarded(|| PdfDocument::from_bytes(bytes.to_vec())).map_err(|error| match error {
        Some(Error::EncryptedPdf) => DocumentFailure::PdfEncrypted,
        _ => DocumentFailure::PdfCorrupt,
    })?;
    let locked = document.is_encrypted()
        && !document.is_authenticated()
        && !matches!(guarded(|| document.authenticate(b"")), Ok(true));
    if locked { Err(DocumentFailure::PdfEncrypted) } else { Ok(document) }
}

/// Runs a step of the engine; a panic is an error without a name.
fn guarded<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<T, Option<Error>> {
    catch_unwind(AssertUnwindSafe(step)).map_or(Err(None), |result| result.map_err(Some))
}

fn title(document: &PdfDocument) -> Option<String> {
    let info = document.trailer().as_dict()?.get("Info")?;
    let info = guarded(|| document.resolve_object(info)).ok()?;
    let Object::String(title) = info.as_dict()?.get("Title")?.clone() else { return None };
    catch_unwind(|| title_of(&title)).ok()?
}
