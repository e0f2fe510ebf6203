//! The way out of every format: text is cleaned, counted against the limits and handed on page by page.

use std::io;

use domain::DocumentFailure;

use crate::{Block, BlockKind, Page, Section};

/// Bytes of text in one document.
pub const MAX_TEXT_BYTES: usize = 20 * 1024 * 1024;
/// Bytes of text on one page.
pub const MAX_PAGE_TEXT_BYTES: usize = 2 * 1024 * 1024;
/// Pages in one document.
pub const MAX_PAGES: usize = 2000;
/// Bytes of headings and structure besides the text; a document of nothing but headings would repeat them without end.
const MAX_STRUCTURE_BYTES: usize = 20 * 1024 * 1024;
/// Characters of one heading in a heading path.
const MAX_HEADING_CHARS: usize = 200;
/// Formats without pages are handed on in parts of about this size, so that a parser that dies leaves something.
const FLUSH_BYTES: usize = 256 * 1024;
/// What a section or block costs besides its characters.
const STRUCTURE_OVERHEAD: usize = 32;

/// Why extraction ended without a verdict of success.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// The document's own fault, with its stable code.
    #[error("the document could not be read: {}", .0.code())]
    Document(DocumentFailure),
    /// Nobody takes the pages any more.
    #[error("the pages could not be handed on")]
    Output(#[from] io::Error),
}

impl From<DocumentFailure> for ExtractError {
    fn from(failure: DocumentFailure) -> Self {
        Self::Document(failure)
    }
}

/// Takes finished pages; an error ends the extraction.
pub type PageSink<'a> = dyn FnMut(Page) -> io::Result<()> + 'a;

/// Counts and hands on.
pub(crate) struct Emitter<'a> {
    sink: &'a mut PageSink<'a>,
    text: usize,
    structure: usize,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(sink: &'a mut PageSink<'a>) -> Self {
        Self { sink, text: 0, structure: 0 }
    }

    /// Hands on a page, unless it is empty.
    pub(crate) fn page(&mut self, page: Page) -> Result<(), ExtractError> {
        self.text += page.text_bytes();
        for section in &page.sections {
            self.structure += section.heading_path.iter().map(|h| h.len() + STRUCTURE_OVERHEAD).sum::<usize>();
            self.structure += (section.blocks.len() + 1) * STRUCTURE_OVERHEAD;
        }
        // Blocks of a character each cost more than they say; they get the room that text does not take.
        if self.text > MAX_TEXT_BYTES || self.structure > MAX_STRUCTURE_BYTES + (MAX_TEXT_BYTES - self.text) {
            return Err(DocumentFailure::TextTooLarge.into());
        }
        // A page without text still says what was drawn on it.
        if page.tally.is_some() || page.sections.iter().any(|s| !s.blocks.is_empty()) {
            (self.sink)(page)?;
        }
        Ok(())
    }

    /// Whether any text went out.
    pub(crate) fn has_text(&self) -> bool {
        self.text > 0
    }
}

/// Builds sections from headings and blocks in reading order, for formats without pages.
pub(crate) struct Outline<'e, 'a> {
    emitter: &'e mut Emitter<'a>,
    /// The open headings with their levels, outermost first.
    open: Vec<(u8, String)>,
    sections: Vec<Section>,
    pending: usize,
}

impl<'e, 'a> Outline<'e, 'a> {
    pub(crate) fn new(emitter: &'e mut Emitter<'a>) -> Self {
        Self { emitter, open: Vec::new(), sections: Vec::new(), pending: 0 }
    }

    /// Starts a section; `level` 1 is the outermost.
    pub(crate) fn heading(&mut self, level: u8, text: &str) -> Result<(), ExtractError> {
        let text = clean(text);
        let name = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if name.is_empty() {
            return Ok(());
        }
        self.open.retain(|(open, _)| *open < level);
        self.open.push((level, name.chars().take(MAX_HEADING_CHARS).collect()));
        self.sections.push(Section { heading_path: self.path(), blocks: Vec::new() });
        self.add(BlockKind::Heading, text)
    }

    /// Adds a block to the open section.
    pub(crate) fn block(&mut self, kind: BlockKind, text: &str) -> Result<(), ExtractError> {
        self.add(kind, clean(text))
    }

    fn add(&mut self, kind: BlockKind, text: String) -> Result<(), ExtractError> {
        let text = trim_block(text);
        if text.is_empty() {
            return Ok(());
        }
        self.pending += text.len() + STRUCTURE_OVERHEAD;
        if self.sections.is_empty() {
            self.sections.push(Section { heading_path: self.path(), blocks: Vec::new() });
        }
        if let Some(section) = self.sections.last_mut() {
            section.blocks.push(Block { kind, text });
        }
        if self.pending >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    fn path(&self) -> Vec<String> {
        self.open.iter().map(|(_, name)| name.clone()).collect()
    }

    fn flush(&mut self) -> Result<(), ExtractError> {
        self.pending = 0;
        let sections = std::mem::take(&mut self.sections);
        self.emitter.page(Page { number: None, sections, tally: None })
    }

    /// Hands on what is left.
    pub(crate) fn finish(mut self) -> Result<(), ExtractError> {
        self.flush()
    }
}

/// Removes what no reader sees and no database takes: control characters, soft hyphens with the line break they
/// allowed, byte order marks and noncharacters. Line ends become `\n`.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => {
                if chars.peek() == Some(&'\n') {
                    chars.next();
                }
                out.push('\n');
            }
            '\u{ad}' => {
                let mut ahead = chars.clone();
                while ahead.next_if(|c| matches!(c, ' ' | '\r')).is_some() {}
                if ahead.next_if_eq(&'\n').is_some() {
                    while ahead.next_if_eq(&' ').is_some() {}
                    chars = ahead;
                }
            }
            '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => out.push('\n'),
            '\t' | '\n' => out.push(c),
            '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {}
            // A break allowed where there is one anyway.
            '\u{200b}' => {
                let before = out.chars().next_back().is_none_or(char::is_whitespace);
                if !before && !chars.peek().is_none_or(|c| c.is_whitespace() || *c == '\u{200b}') {
                    out.push(c);
                }
            }
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// Removes blank lines around a block, and spaces at its end; the indentation of its first line stays.
fn trim_block(mut text: String) -> String {
    text.truncate(text.trim_end().len());
    let start = text.len() - text.trim_start().len();
    let line = text.get(..start).and_then(|s| s.rfind('\n')).map_or(0, |at| at + 1);
    text.drain(..line);
    text
}

/// Breaks text into lines of records that repeat the header, so that a part of a long table can be read alone.
pub(crate) fn table_blocks(rows: &[String], header_rows: usize) -> Vec<String> {
    /// About half a chunk of the default size.
    const GROUP_CHARS: usize = 800;
    let (header, body) = rows.split_at(header_rows.min(rows.len()));
    let header = header.join("\n");
    // A header as long as its table would be repeated more often than read.
    let repeat = !header.is_empty() && header.len() * 2 <= GROUP_CHARS;
    let mut blocks = Vec::new();
    let mut group = header.clone();
    let mut used = false;
    for row in body.iter().filter(|row| !row.is_empty()) {
        if used && group.len() + row.len() > GROUP_CHARS {
            let next = if repeat { header.clone() } else { String::new() };
            blocks.push(std::mem::replace(&mut group, next));
        }
        if !group.is_empty() {
            group.push('\n');
        }
        group.push_str(row);
        used = true;
    }
    if !group.is_empty() {
        blocks.push(group);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_removes_what_cannot_be_seen() {
        assert_eq!(clean("optional\u{ad}hyphen"), "optionalhyphen");
        assert_eq!(clean("optional\u{ad}\n  hyphen"), "optionalhyphen");
        assert_eq!(clean("a\0b\r\nc\rd\u{feff}"), "ab\nc\nd");
        assert_eq!(clean("soft\u{ad} space"), "soft space");
        assert_eq!(clean("a\u{200b} \u{200b}b\u{200b}c\u{200b}"), "a b\u{200b}c");
    }

    #[test]
    fn headings_nest_and_close() {
        let mut pages = Vec::new();
        let mut sink = |page: Page| {
            pages.push(page);
            Ok(())
        };
        let mut emitter = Emitter::new(&mut sink);
        let mut outline = Outline::new(&mut emitter);
        outline.block(BlockKind::Paragraph, "before").unwrap();
        outline.heading(1, "A").unwrap();
        outline.heading(3, "B").unwrap();
        outline.heading(2, "C").unwrap();
        outline.heading(1, "D").unwrap();
        outline.finish().unwrap();
        let paths: Vec<String> = pages[0].sections.iter().map(|s| s.heading_path.join("/")).collect();
        assert_eq!(paths, ["", "A", "A/B", "A/C", "D"]);
    }

    #[test]
    fn too_much_text_and_too_many_headings_are_refused() {
        let mut sink = |_: Page| Ok(());
        let mut emitter = Emitter::new(&mut sink);
        let mut outline = Outline::new(&mut emitter);
        let long = "x".repeat(1024 * 1024);
        let failed = (0..30).find_map(|_| outline.block(BlockKind::Paragraph, &long).err());
        assert!(matches!(failed, Some(ExtractError::Document(DocumentFailure::TextTooLarge))));

        let mut sink = |_: Page| Ok(());
        let mut emitter = Emitter::new(&mut sink);
        let mut outline = Outline::new(&mut emitter);
        let name = "y".repeat(400);
        let failed = (0..400_000u32).find_map(|i| outline.heading((i % 9) as u8 + 1, &name).err());
        assert!(matches!(failed, Some(ExtractError::Document(DocumentFailure::TextTooLarge))));
    }

    #[test]
    fn a_table_repeats_its_header_in_every_group() {
        let mut rows = vec!["name | price".to_string()];
        rows.extend((0..200).map(|i| format!("thing {i} | {i}.00")));
        let blocks = table_blocks(&rows, 1);
        assert!(blocks.len() > 2);
        assert!(blocks.iter().all(|b| b.starts_with("name | price\n")));
        let body: usize = blocks.iter().map(|b| b.lines().count() - 1).sum();
        assert_eq!(body, 200);
    }

    #[test]
    fn a_table_without_rows_keeps_its_header() {
        assert_eq!(table_blocks(&["only".into()], 1), ["only"]);
        assert!(table_blocks(&[], 1).is_empty());
    }
}
