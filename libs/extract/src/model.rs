//! What a parser answers: pages of sections of blocks.

use serde::{Deserialize, Serialize};

use crate::sanity::Tally;

/// What a block of text is in its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockKind {
    /// Running text.
    Paragraph,
    /// The heading its section is named after.
    Heading,
    /// A list with its markers.
    List,
    /// Rows of a table, starting with the table's header where it has one.
    Table,
    /// Preformatted text.
    Code,
    /// A foot- or endnote.
    Note,
}

/// A piece of text that belongs together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// What it is.
    pub kind: BlockKind,
    /// The text as it is shown: not folded, not normalised.
    pub text: String,
}

/// Blocks under one heading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// The headings above, outermost first; empty before the first heading.
    pub heading_path: Vec<String>,
    /// The blocks, in reading order.
    pub blocks: Vec<Block>,
}

/// A page, or a part of one: neighbours with the same number are one page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The page's number, counted from 1; none in formats without pages.
    pub number: Option<u32>,
    /// The sections, in reading order.
    pub sections: Vec<Section>,
    /// What was drawn on it, in formats where that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<Tally>,
}

impl Page {
    /// The bytes of text on the page.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        self.sections.iter().flat_map(|s| &s.blocks).map(|b| b.text.len()).sum()
    }
}

/// What is known about a document besides its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The title the document gives itself.
    pub title: Option<String>,
    /// The encoding its text was read in, for text formats (WHATWG name).
    pub charset: Option<String>,
    /// How many pages it has; 0 in formats without pages.
    pub page_count: u32,
    /// Pages that could not be read though others could.
    pub failed_pages: u32,
    /// The engine that read it; two if each read pages.
    pub engine: String,
    /// How far the text can be believed, from 0 to 1, in formats where that can be told.
    #[serde(default)]
    pub sanity: Option<f64>,
}

/// A document's text, put together from the pages that arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extracted {
    /// The pages, in order.
    pub pages: Vec<Page>,
    /// What else is known; default values if the parser died before its verdict.
    pub summary: Summary,
    /// Whether text is missing because pages failed or the parser died.
    pub partial_pages: bool,
}

impl Extracted {
    /// Adds what arrived, joining parts of the same page and of the same section.
    pub fn push(&mut self, page: Page) {
        let Some(last) = self.pages.last_mut().filter(|last| last.number == page.number) else {
            self.pages.push(page);
            return;
        };
        let mut sections = page.sections.into_iter();
        if let Some(first) = sections.next() {
            let begins = first.blocks.first().is_some_and(|b| b.kind == BlockKind::Heading);
            match last.sections.last_mut() {
                Some(open) if !begins && open.heading_path == first.heading_path => open.blocks.extend(first.blocks),
                _ => last.sections.push(first),
            }
        }
        last.sections.extend(sections);
    }

    /// Whether there is any text at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.iter().flat_map(|p| &p.sections).flat_map(|s| &s.blocks).all(|b| b.text.trim().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: Option<u32>, path: &[&str], kind: BlockKind, text: &str) -> Page {
        let heading_path = path.iter().map(ToString::to_string).collect();
        let blocks = vec![Block { kind, text: text.into() }];
        Page { number, sections: vec![Section { heading_path, blocks }], tally: None }
    }

    #[test]
    fn parts_of_a_section_are_joined_and_a_new_heading_of_the_same_name_is_not() {
        let mut all = Extracted::default();
        all.push(page(None, &["Notes"], BlockKind::Heading, "Notes"));
        all.push(page(None, &["Notes"], BlockKind::Paragraph, "one"));
        all.push(page(None, &["Notes"], BlockKind::Heading, "Notes"));
        assert_eq!(all.pages.len(), 1);
        assert_eq!(all.pages[0].sections.len(), 2);
        assert_eq!(all.pages[0].sections[0].blocks.len(), 2);
    }

    #[test]
    fn pages_stay_apart() {
        let mut all = Extracted::default();
        all.push(page(Some(1), &[], BlockKind::Paragraph, "one"));
        all.push(page(Some(2), &[], BlockKind::Paragraph, "two"));
        assert_eq!(all.pages.len(), 2);
    }
}
