//! Cutting a document into chunks for embedding.
//!
//! Sizes are in whatever the caller's counter counts: tokens of a model, or characters. A chunk never crosses a page or
//! a section. The chunks of a section begin with text of the one before (the overlap) and otherwise cover the text
//! exactly once, so a chunk of nothing but overlap cannot exist.

mod overlap;
mod sizer;
mod split;

use domain::DocumentFailure;
use overlap::{Before, Room};

use crate::{Extracted, Section};

/// What stands between two blocks in the document's text.
const BLOCK_SEPARATOR: &str = "\n\n";

/// How to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSettings {
    /// The largest chunk, overlap included, as the counter counts.
    pub size: usize,
    /// How much of the chunk before is repeated, at most half of `size`.
    pub overlap: usize,
    /// More chunks than this are refused.
    pub max_chunks: usize,
}

impl Default for ChunkSettings {
    fn default() -> Self {
        Self { size: 400, overlap: 60, max_chunks: 20_000 }
    }
}

/// A piece of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its place in the document, from 0.
    pub ordinal: u32,
    /// The text as it stands in the document.
    pub content: String,
    /// The headings above it, outermost first.
    pub heading_path: Vec<String>,
    /// The page it begins on; none in formats without pages.
    pub page_from: Option<u32>,
    /// The page it ends on.
    pub page_to: Option<u32>,
    /// Where it begins in [`document_text`], in characters (Unicode scalar values).
    pub char_from: u64,
    /// Where it ends, exclusive.
    pub char_to: u64,
    /// Its size as the counter counts, without what [`embedded_text`] adds.
    pub token_count: u32,
}

/// The text that the offsets of chunks refer to: all blocks in order, an empty line between them.
#[must_use]
pub fn document_text(extracted: &Extracted) -> String {
    let blocks = extracted.pages.iter().flat_map(|p| &p.sections).flat_map(|s| &s.blocks);
    let texts: Vec<&str> = blocks.map(|b| b.text.as_str()).collect();
    texts.join(BLOCK_SEPARATOR)
}

/// The text that is embedded for a chunk: its title and headings in front, so that a passage that names neither is
/// found by them. What is stored and shown is the chunk's content alone.
#[must_use]
pub fn embedded_text(chunk: &Chunk, title: Option<&str>) -> String {
    let title = title.map(str::trim).filter(|t| !t.is_empty());
    // A document whose first heading is its title would say it twice.
    let path = chunk.heading_path.iter().map(String::as_str).filter(|h| Some(*h) != title);
    let context: Vec<&str> = title.into_iter().chain(path).collect();
    if context.is_empty() { chunk.content.clone() } else { format!("{}\n\n{}", context.join(" · "), chunk.content) }
}

/// Cuts a document. `count` gives the size of a text and is called with a bounded multiple of the document's bytes in
/// all, however the document looks.
///
/// # Errors
/// [`DocumentFailure::TooManyChunks`].
pub fn chunks(
    extracted: &Extracted,
    settings: &ChunkSettings,
    count: &dyn Fn(&str) -> usize,
) -> Result<Vec<Chunk>, DocumentFailure> {
    let size = settings.size.max(1);
    let overlap = settings.overlap.min(size / 2);
    let splitter = split::Splitter::new(size, overlap, count);
    let mut all = Vec::new();
    let mut base = 0u64;
    for page in &extracted.pages {
        for section in &page.sections {
            if section.blocks.is_empty() {
                continue;
            }
            let text = section_text(section);
            let mut cursor = CharCursor::new(&text, base);
            let mut before: Option<Before> = None;
            for core in splitter.cores(&text) {
                if all.len() >= settings.max_chunks {
                    return Err(DocumentFailure::TooManyChunks);
                }
                let start = match &before {
                    Some(before) => overlap::start(&text, before, &core, Room { overlap, size, count }),
                    None => core.start,
                };
                let content = text.get(start..core.end).unwrap_or_default();
                let core_from = cursor.advance(core.start);
                let repeated = text.get(start..core.start).unwrap_or_default().chars().count() as u64;
                all.push(Chunk {
                    ordinal: u32::try_from(all.len()).unwrap_or(u32::MAX),
                    content: content.to_owned(),
                    heading_path: section.heading_path.clone(),
                    page_from: page.number,
                    page_to: page.number,
                    char_from: core_from - repeated,
                    char_to: cursor.advance(core.end),
                    token_count: u32::try_from(count(content)).unwrap_or(u32::MAX),
                });
                before = Some(Before { start, core: core.start });
            }
            base = cursor.advance(text.len()) + BLOCK_SEPARATOR.len() as u64;
        }
    }
    Ok(all)
}

fn section_text(section: &Section) -> String {
    let blocks: Vec<&str> = section.blocks.iter().map(|b| b.text.as_str()).collect();
    blocks.join(BLOCK_SEPARATOR)
}

/// Turns byte offsets that only grow into character offsets.
struct CharCursor<'t> {
    text: &'t str,
    byte: usize,
    char: u64,
}

impl<'t> CharCursor<'t> {
    fn new(text: &'t str, base: u64) -> Self {
        Self { text, byte: 0, char: base }
    }

    fn advance(&mut self, to: usize) -> u64 {
        self.char += self.text.get(self.byte..to).unwrap_or_default().chars().count() as u64;
        self.byte = to;
        self.char
    }
}

#[cfg(test)]
mod tests;
