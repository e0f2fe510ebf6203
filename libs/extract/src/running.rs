//! Running headers and footers, which repeat on page after page and say nothing about any of them.

use std::collections::HashMap;

use crate::{Block, Extracted, Page};

/// Headers and footers of up to this many lines are found.
const LINES: usize = 2;
/// Left and right pages may differ, so each kind is looked at alone; this many must share a line.
const MIN_PAGES: usize = 3;
/// And this share of them.
const MIN_SHARE: f64 = 0.6;
/// Longer lines are text.
const MAX_CHARS: usize = 120;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Edge {
    Top,
    Bottom,
}

/// A line as it recurs: numbers differ from page to page.
type Key = (Edge, u32, String);

impl Extracted {
    /// Removes first and last lines that most pages share, but for the numbers in them. Formats without pages have
    /// none; a document that would be left without any text keeps all.
    pub fn drop_running_lines(&mut self) {
        let mut pages = self.pages.clone();
        for _ in 0..LINES {
            for edge in [Edge::Top, Edge::Bottom] {
                drop_lines(&mut pages, edge);
            }
        }
        let kept = Self { pages, ..Self::default() };
        if !kept.is_empty() {
            self.pages = kept.pages;
        }
    }
}

fn drop_lines(pages: &mut [Page], edge: Edge) {
    let mut counts: HashMap<Key, usize> = HashMap::new();
    let mut sides: HashMap<u32, usize> = HashMap::new();
    for page in pages.iter() {
        if let Some(key) = key(page, edge) {
            *sides.entry(key.1).or_default() += 1;
            *counts.entry(key).or_default() += 1;
        }
    }
    for page in pages.iter_mut() {
        let Some(key) = key(page, edge) else { continue };
        let shared = counts.get(&key).copied().unwrap_or_default();
        let side = sides.get(&key.1).copied().unwrap_or_default();
        if shared >= MIN_PAGES && shared as f64 > MIN_SHARE * side as f64 {
            drop_line(page, edge);
        }
    }
}

fn key(page: &Page, edge: Edge) -> Option<Key> {
    let number = page.number?;
    let block = match edge {
        Edge::Top => page.sections.first()?.blocks.first()?,
        Edge::Bottom => page.sections.last()?.blocks.last()?,
    };
    let line = match edge {
        Edge::Top => block.text.lines().next()?,
        Edge::Bottom => block.text.lines().next_back()?,
    };
    if line.chars().count() > MAX_CHARS {
        return None;
    }
    let mut shape = String::new();
    for c in line.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase) {
        match c {
            c if c.is_numeric() && shape.ends_with('#') => {}
            c if c.is_numeric() => shape.push('#'),
            c => shape.push(c),
        }
    }
    Some((edge, number % 2, shape))
}

fn drop_line(page: &mut Page, edge: Edge) {
    let section = match edge {
        Edge::Top => page.sections.first_mut(),
        Edge::Bottom => page.sections.last_mut(),
    };
    let Some(section) = section else { return };
    let index = if edge == Edge::Top { 0 } else { section.blocks.len().saturating_sub(1) };
    let Some(block) = section.blocks.get_mut(index) else { return };
    block.text = without_line(block, edge).to_owned();
    if block.text.is_empty() {
        section.blocks.remove(index);
    }
    page.sections.retain(|s| !s.blocks.is_empty());
}

fn without_line(block: &Block, edge: Edge) -> &str {
    let rest = match edge {
        Edge::Top => block.text.split_once('\n').map(|(_, rest)| rest),
        Edge::Bottom => block.text.rsplit_once('\n').map(|(rest, _)| rest),
    };
    rest.unwrap_or_default().trim_matches('\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockKind, Section};

    fn document(pages: &[&[&str]]) -> Extracted {
        let mut all = Extracted::default();
        for (number, blocks) in (1u32..).zip(pages) {
            let blocks = blocks.iter().map(|b| Block { kind: BlockKind::Paragraph, text: (*b).to_owned() }).collect();
            let sections = vec![Section { heading_path: Vec::new(), blocks }];
            all.push(Page { number: Some(number), sections, tally: None });
        }
        all
    }

    fn texts(all: &Extracted) -> Vec<String> {
        all.pages
            .iter()
            .map(|p| p.sections.iter().flat_map(|s| &s.blocks).map(|b| b.text.as_str()).collect::<Vec<_>>().join("|"))
            .collect()
    }

    #[test]
    fn headers_and_page_numbers_go_and_text_stays() {
        let bodies = ["alpha", "beta\nmore", "gamma", "delta", "epsilon", "zeta"];
        let pages: Vec<Vec<String>> = bodies
            .iter()
            .enumerate()
            .map(|(i, body)| {
                let side = if i % 2 == 0 { "Annual report" } else { "Chapter 3: results" };
                vec![format!("{side}\n{body}"), format!("page {} of 6", i + 1)]
            })
            .collect();
        let borrowed: Vec<Vec<&str>> = pages.iter().map(|p| p.iter().map(String::as_str).collect()).collect();
        let mut all = document(&borrowed.iter().map(Vec::as_slice).collect::<Vec<_>>());
        all.drop_running_lines();
        assert_eq!(texts(&all), bodies);
    }

    #[test]
    fn few_pages_and_pages_that_are_all_the_same_are_left_alone() {
        let mut all = document(&[&["same"], &["same"], &["other"]]);
        all.drop_running_lines();
        assert_eq!(texts(&all), ["same", "same", "other"]);
        let pages: Vec<&[&str]> = vec![&["same"]; 20];
        let mut all = document(&pages);
        all.drop_running_lines();
        assert_eq!(all.pages.len(), 20);
        assert_eq!(texts(&all)[19], "same");
    }
}
