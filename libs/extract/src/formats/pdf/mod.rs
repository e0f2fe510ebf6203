//! PDF, page by page, with one of two engines.
//!
//! Each page is read behind a guard, so that one page that cannot be read costs only itself; what cannot be caught (a
//! stack that overflows, memory that runs out, a loop) ends the process, and the pages handed on before stay good.
//! With each page goes a tally of what was drawn on it, from which [`crate::reading`] tells text from rubbish.

mod device;
mod direction;
mod first;
mod names;
mod operators;
mod second;
mod text;
mod widths;

use domain::DocumentFailure;
use pdf_extract::{Object, StringFormat, decode_text_string};

use crate::{
    Block, ExtractError, Page, Section, Summary,
    emit::{Emitter, MAX_PAGES, clean},
    reading::Engine,
    sanity::Tally,
};

pub(super) fn extract(engine: Engine, bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    match engine {
        Engine::First => first::extract(bytes, emitter),
        Engine::Second => second::extract(bytes, emitter),
    }
}

/// What is common to both engines: hands pages on and counts the failed ones.
struct Pages<'p, 'e> {
    emitter: &'p mut Emitter<'e>,
    count: u32,
    failed: u32,
}

impl<'p, 'e> Pages<'p, 'e> {
    fn new(count: usize, emitter: &'p mut Emitter<'e>) -> Result<Self, DocumentFailure> {
        match count {
            0 => Err(DocumentFailure::PdfCorrupt),
            count if count > MAX_PAGES => Err(DocumentFailure::TooManyPages),
            count => Ok(Self { emitter, count: u32::try_from(count).unwrap_or(u32::MAX), failed: 0 }),
        }
    }

    fn page(&mut self, number: u32, text: &str, tally: Tally) -> Result<(), ExtractError> {
        self.failed += u32::from(tally.failed);
        let blocks: Vec<Block> = text::blocks(text);
        let sections = if blocks.is_empty() { vec![] } else { vec![Section { heading_path: Vec::new(), blocks }] };
        self.emitter.page(Page { number: Some(number), sections, tally: Some(tally) })
    }

    fn finish(self, title: Option<String>, engine: &str) -> Result<Summary, ExtractError> {
        if !self.emitter.has_text() {
            let failure = if self.failed == 0 { DocumentFailure::PdfNoText } else { DocumentFailure::PdfUnreadable };
            return Err(failure.into());
        }
        Ok(Summary {
            title,
            page_count: self.count,
            failed_pages: self.failed,
            engine: engine.to_owned(),
            ..Summary::default()
        })
    }
}

/// A title as the information dictionary has it (ISO 32000-1, 14.3.3 and 7.9.2.2), on one line.
fn title_of(value: &[u8]) -> Option<String> {
    let title = decode_text_string(&Object::String(value.to_vec(), StringFormat::Literal)).ok()?;
    let title = clean(&title).split_whitespace().collect::<Vec<_>>().join(" ");
    (!title.is_empty()).then_some(title)
}
