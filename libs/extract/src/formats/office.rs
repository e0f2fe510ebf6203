//! Texts, presentations and e-books, by way of anydoc's document model.

use std::collections::HashMap;
use std::io::Cursor;

use anydoc::model::{Block as Node, Cell, CellSlot, Document, Inline, List, Note, Table, TableKind, checkbox_text};
use anydoc::{ConvertError, Format as Kind};
use domain::DocumentFailure;
use zip::ZipArchive;

use crate::{
    BlockKind, ExtractError, Summary, archive,
    emit::{Emitter, Outline, table_blocks},
};

/// Largest part that is looked at for a title.
const MAX_PROPERTIES_BYTES: u64 = 64 * 1024;

pub(super) fn extract(kind: Kind, bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let title = if bytes.starts_with(b"PK") { title(archive::check(bytes)?) } else { None };
    // What the package says it is decides. One that says nothing may be encrypted or damaged, which the parser tells.
    if Kind::from_bytes(bytes).is_some_and(|found| found != kind) {
        return Err(DocumentFailure::TypeMismatch.into());
    }
    let document = anydoc::to_document(bytes, kind).map_err(|e| failure(&e))?;
    let mut outline = Outline::new(emitter);
    Walk::new(&document).blocks(&document.blocks, &mut outline)?;
    outline.finish()?;
    Ok(Summary { title, engine: "anydoc".to_owned(), ..Summary::default() })
}

fn failure(error: &ConvertError) -> DocumentFailure {
    match error {
        ConvertError::Encrypted => DocumentFailure::Encrypted,
        ConvertError::Unsupported(_) => DocumentFailure::TypeMismatch,
        ConvertError::ResourceLimit { limit, .. } if limit.contains("bytes") || limit.contains("entry") => {
            DocumentFailure::ArchiveBomb
        }
        ConvertError::ResourceLimit { .. } => DocumentFailure::ParserLimit,
        _ => DocumentFailure::Corrupt,
    }
}

/// Walks the model in reading order. The nesting is bounded by the depth of XML that anydoc accepts.
struct Walk<'d> {
    notes: HashMap<&'d str, &'d Note>,
    /// Numbers given to notes in the order of their first mark.
    numbers: HashMap<&'d str, usize>,
    /// Notes whose mark was met and whose text was not yet written.
    due: Vec<&'d str>,
}

impl<'d> Walk<'d> {
    fn new(document: &'d Document) -> Self {
        let mut notes = HashMap::new();
        for note in &document.notes {
            notes.entry(note.id.as_str()).or_insert(note);
        }
        Self { notes, numbers: HashMap::new(), due: Vec::new() }
    }

    fn blocks(&mut self, blocks: &'d [Node], outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        for block in blocks {
            match block {
                Node::Heading { level, content, .. } => {
                    let text = self.inlines(content);
                    outline.heading(*level, &text)?;
                }
                Node::Paragraph(content) => {
                    let text = self.inlines(content);
                    outline.block(BlockKind::Paragraph, &text)?;
                }
                Node::List(list) => {
                    let mut text = String::new();
                    self.list(list, 0, &mut text);
                    outline.block(BlockKind::List, &text)?;
                }
                Node::Table(table) if is_layout(table) => {
                    for cell in cells(table) {
                        self.blocks(&cell.blocks, outline)?;
                    }
                }
                Node::Table(table) => {
                    let rows = self.rows(table);
                    for group in table_blocks(&rows, table.header_rows) {
                        outline.block(BlockKind::Table, &group)?;
                    }
                }
                Node::BlockQuote(inner) => self.blocks(inner, outline)?,
                Node::CodeBlock { text, .. } => outline.block(BlockKind::Code, text)?,
                Node::Math(tex) => outline.block(BlockKind::Paragraph, tex)?,
                Node::Rule => {}
            }
            self.notes(outline)?;
        }
        Ok(())
    }

    /// Writes the notes marked since the last block behind it, so that they stay in its section.
    fn notes(&mut self, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        // A note may mark further notes; each is written once.
        while !self.due.is_empty() {
            for id in std::mem::take(&mut self.due) {
                let Some(note) = self.notes.get(id).copied() else { continue };
                let number = self.numbers.get(id).copied().unwrap_or_default();
                let text = self.flat(&note.blocks);
                if !text.is_empty() {
                    outline.block(BlockKind::Note, &format!("[{number}] {text}"))?;
                }
            }
        }
        Ok(())
    }

    fn inlines(&mut self, inlines: &'d [Inline]) -> String {
        let mut out = String::new();
        self.collect(inlines, &mut out);
        out
    }

    fn collect(&mut self, inlines: &'d [Inline], out: &mut String) {
        for inline in inlines {
            match inline {
                Inline::Text { text, .. } => out.push_str(text),
                Inline::Link { content, .. } => self.collect(content, out),
                Inline::Image { alt, .. } => out.push_str(alt),
                Inline::Math(tex) => out.push_str(tex),
                Inline::Checkbox(checked) => out.push_str(checkbox_text(*checked)),
                Inline::LineBreak => out.push('\n'),
                Inline::Anchor(_) => {}
                Inline::NoteRef(id) => {
                    let next = self.numbers.len() + 1;
                    let number = *self.numbers.entry(id.as_str()).or_insert(next);
                    if number == next {
                        self.due.push(id.as_str());
                    }
                    out.push_str(&format!("[{number}]"));
                }
            }
        }
    }

    fn list(&mut self, list: &'d List, depth: usize, out: &mut String) {
        for (index, item) in list.items.iter().enumerate() {
            let label = match &item.marker_label {
                Some(label) => label.clone(),
                None => list.marker.label(list.start.saturating_add(index as u64)),
            };
            let indent = "  ".repeat(depth);
            out.push_str(&format!("{indent}{label} "));
            let (nested, own): (Vec<&Node>, Vec<&Node>) = item.blocks.iter().partition(|b| matches!(b, Node::List(_)));
            let text: Vec<String> = own.into_iter().map(|b| self.flat_one(b)).filter(|t| !t.is_empty()).collect();
            out.push_str(&text.join(&format!("\n{indent}  ")));
            out.push('\n');
            for block in nested {
                if let Node::List(list) = block {
                    self.list(list, depth + 1, out);
                }
            }
        }
    }

    /// One line a row; merged cells are written where they begin.
    fn rows(&mut self, table: &'d Table) -> Vec<String> {
        table
            .grid
            .iter()
            .map(|row| {
                let cells: Vec<String> = row
                    .iter()
                    .map(|slot| match slot {
                        CellSlot::Origin(cell) => self.flat(&cell.blocks),
                        CellSlot::Covered { .. } => String::new(),
                    })
                    .collect();
                cells.join(" | ")
            })
            // Only white space and separators is an empty row.
            .map(|row| if row.trim_matches([' ', '|']).is_empty() { String::new() } else { row })
            .collect()
    }

    /// The text of blocks on one line.
    fn flat(&mut self, blocks: &'d [Node]) -> String {
        let parts: Vec<String> = blocks.iter().map(|b| self.flat_one(b)).filter(|t| !t.is_empty()).collect();
        parts.join(" ")
    }

    fn flat_one(&mut self, block: &'d Node) -> String {
        let text = match block {
            Node::Heading { content, .. } | Node::Paragraph(content) => self.inlines(content),
            Node::List(list) => {
                let mut text = String::new();
                self.list(list, 0, &mut text);
                text
            }
            Node::Table(table) => cells(table).map(|cell| self.flat(&cell.blocks)).collect::<Vec<_>>().join(" "),
            Node::BlockQuote(inner) => self.flat(inner),
            Node::CodeBlock { text, .. } => text.clone(),
            Node::Math(tex) => tex.clone(),
            Node::Rule => String::new(),
        };
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn cells(table: &Table) -> impl Iterator<Item = &Cell> {
    table.grid.iter().flatten().filter_map(|slot| match slot {
        CellSlot::Origin(cell) => Some(cell),
        CellSlot::Covered { .. } => None,
    })
}

/// Text boxes and tables that only place things: their cells hold headings, tables or the whole document.
fn is_layout(table: &Table) -> bool {
    let one_column = table.grid.iter().all(|row| row.len() <= 1);
    table.kind == TableKind::Layout
        || one_column
        || cells(table).any(|cell| cell.blocks.iter().any(|b| matches!(b, Node::Heading { .. } | Node::Table(_))))
}

/// The title in the core properties, the metadata of an `OpenDocument` text, or the package document of an EPUB.
fn title(mut archive: ZipArchive<Cursor<&[u8]>>) -> Option<String> {
    let package = archive.file_names().find(|name| name.ends_with(".opf")).map(str::to_owned);
    let parts = ["docProps/core.xml", "meta.xml"].into_iter().map(str::to_owned).chain(package);
    parts.into_iter().find_map(|part| property_title(&archive::small_entry(&mut archive, &part, MAX_PROPERTIES_BYTES)?))
}

/// `dc:title` (ECMA-376 part 2, 11; ODF 1.2 part 1, 4.3.2.3; EPUB 3.3, 5.5.3.1.2). Read as text: one element with character data in it.
fn property_title(xml: &[u8]) -> Option<String> {
    let xml = std::str::from_utf8(xml).ok()?;
    let (_, rest) = xml.split_once("<dc:title")?;
    let (attributes, rest) = rest.split_once('>')?;
    if attributes.ends_with('/') {
        return None;
    }
    let (value, _) = rest.split_once("</dc:title>")?;
    let value = value
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&");
    let value = crate::emit::clean(value.trim());
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_is_read_from_the_core_properties() {
        let xml = br#"<cp:coreProperties><dc:title xml:lang="en">A &amp; B</dc:title></cp:coreProperties>"#;
        assert_eq!(property_title(xml).as_deref(), Some("A & B"));
        assert_eq!(property_title(b"<dc:title/><dc:creator>x</dc:creator>"), None);
        assert_eq!(property_title(b"<dc:title></dc:title>"), None);
    }
}
