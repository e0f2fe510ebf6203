//! The first engine: pdf-extract, with lines and spaces inferred by our own [`PageText`].
//!
//! It panics on many files that other readers open, knows no predefined character maps, and does not repair
//! cross-references.

use std::panic::{AssertUnwindSafe, catch_unwind};

use domain::DocumentFailure;
use pdf_extract::{Dictionary, Document, Error, Object, output_doc_page};

use super::{Pages, device::PageText, operators, title_of, widths};
use crate::{
    ExtractError, Summary,
    emit::{Emitter, MAX_PAGES},
};

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let mut document = load(bytes)?;
    // An engine given a file it cannot decrypt may answer with empty pages instead of an error.
    if document.is_encrypted() {
        return Err(DocumentFailure::PdfEncrypted.into());
    }
    widths::spell_out(&mut document);
    let ids: Vec<_> = document.page_iter().take(MAX_PAGES + 1).collect();
    let mut pages = Pages::new(ids.len(), emitter)?;
    for (number, id) in (1u32..).zip(ids) {
        let mut device = PageText::default();
        let read = catch_unwind(AssertUnwindSafe(|| output_doc_page(&document, &mut device, number)));
        if device.is_full() {
            return Err(DocumentFailure::PageTextTooLarge.into());
        }
        let content = catch_unwind(AssertUnwindSafe(|| document.get_page_content(id)));
        let (text, mut tally) = device.finish();
        tally.failed = !matches!(read, Ok(Ok(())));
        tally.operators = if let Ok(Ok(content)) = content { operators::count(&content) } else { 0 };
        pages.page(number, &text, tally)?;
    }
    pages.finish(title(&document), "pdf-extract")
}

fn load(bytes: &[u8]) -> Result<Document, DocumentFailure> {
    // The loader tries the empty password by itself.
    match catch_unwind(|| Document::load_mem(bytes)) {
        Ok(Ok(document)) => Ok(document),
        Ok(Err(Error::InvalidPassword | Error::Decryption(_))) => Err(DocumentFailure::PdfEncrypted),
        Ok(Err(_)) | Err(_) => Err(DocumentFailure::PdfCorrupt),
    }
}

fn title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?;
    let info: &Dictionary = match info {
        Object::Reference(id) => document.get_dictionary(*id).ok()?,
        other => other.as_dict().ok()?,
    };
    let title = info.get(b"Title").ok()?.as_str().ok()?;
    catch_unwind(|| title_of(title)).ok()?
}
