//! PDF, page by page, by way of pdf-extract.
//!
//! The engine panics on many files that other readers open. Each page is read behind a guard, so that one page that
//! cannot be read costs only itself; what cannot be caught (a stack that overflows, memory that runs out, a loop) ends
//! the process, and the pages handed on before stay good.

mod device;
mod direction;
mod text;

use std::panic::{AssertUnwindSafe, catch_unwind};

use domain::DocumentFailure;
use pdf_extract::{Dictionary, Document, Error, Object, decode_text_string, output_doc_page};

use crate::{
    ExtractError, Page, Section, Summary,
    emit::{Emitter, MAX_PAGES, clean},
};
use device::PageText;

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let document = load(bytes)?;
    // An engine given a file it cannot decrypt may answer with empty pages instead of an error.
    if document.is_encrypted() {
        return Err(DocumentFailure::PdfEncrypted.into());
    }
    let pages: Vec<_> = document.page_iter().take(MAX_PAGES + 1).collect();
    if pages.is_empty() {
        return Err(DocumentFailure::PdfCorrupt.into());
    }
    if pages.len() > MAX_PAGES {
        return Err(DocumentFailure::TooManyPages.into());
    }
    let mut failed_pages = 0;
    for number in 1..=u32::try_from(pages.len()).unwrap_or(u32::MAX) {
        let mut device = PageText::default();
        let read = catch_unwind(AssertUnwindSafe(|| output_doc_page(&document, &mut device, number)));
        if device.is_full() {
            return Err(DocumentFailure::PageTextTooLarge.into());
        }
        failed_pages += u32::from(!matches!(read, Ok(Ok(()))));
        let blocks = text::blocks(&device.finish());
        if !blocks.is_empty() {
            emitter
                .page(Page { number: Some(number), sections: vec![Section { heading_path: Vec::new(), blocks }] })?;
        }
    }
    if !emitter.has_text() {
        let failure = if failed_pages == 0 { DocumentFailure::PdfNoText } else { DocumentFailure::PdfUnreadable };
        return Err(failure.into());
    }
    Ok(Summary {
        title: title(&document),
        charset: None,
        page_count: u32::try_from(pages.len()).unwrap_or(u32::MAX),
        failed_pages,
        engine: "pdf-extract".to_owned(),
    })
}

fn load(bytes: &[u8]) -> Result<Document, DocumentFailure> {
    // The loader tries the empty password by itself.
    match catch_unwind(|| Document::load_mem(bytes)) {
        Ok(Ok(document)) => Ok(document),
        Ok(Err(Error::InvalidPassword | Error::Decryption(_))) => Err(DocumentFailure::PdfEncrypted),
        Ok(Err(_)) | Err(_) => Err(DocumentFailure::PdfCorrupt),
    }
}

/// The title in the information dictionary (ISO 32000-1, 14.3.3).
fn title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?;
    let info: &Dictionary = match info {
        Object::Reference(id) => document.get_dictionary(*id).ok()?,
        other => other.as_dict().ok()?,
    };
    let title = catch_unwind(AssertUnwindSafe(|| decode_text_string(info.get(b"Title").ok()?).ok())).ok()??;
    let title = clean(&title).split_whitespace().collect::<Vec<_>>().join(" ");
    (!title.is_empty()).then_some(title)
}
