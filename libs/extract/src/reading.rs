//! What the processes that read a document left, and which of it is kept.
//!
//! A PDF is read by a first engine, and by a second in a process of its own where the first died, found nothing or gave
//! text that cannot be believed. Both may have lost something, so the choice is made page by page.

use std::collections::{BTreeMap, BTreeSet};

use domain::DocumentFailure;
use serde::{Deserialize, Serialize};

use crate::sanity::{DOUBTFUL, Sanity, Tally, judge};
use crate::{Extracted, Page, Summary};

/// Which engine a process reads a PDF with. Other formats have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// pdf-extract.
    #[default]
    First,
    /// `pdf_oxide`.
    Second,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// It read the document to its end.
    Read(Summary),
    /// The document's own fault.
    Refused(DocumentFailure),
    /// It died, or caught a panic that was as good as its death.
    Died(DocumentFailure),
}

/// The pages a process sent and how it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The pages, in the order they came.
    pub pages: Vec<Page>,
    /// The end.
    pub end: End,
}

/// Whether a PDF is to be read by [`Engine::Second`] too.
#[must_use]
pub fn is_doubtful(first: &Reading) -> bool {
    use DocumentFailure as F;
    match &first.end {
        End::Read(_) => first.pages.iter().any(|page| is_failed(page) || sanity(page).score < DOUBTFUL),
        // What is over a limit is so for every engine.
        End::Refused(failure) => {
            !matches!(failure, F::EmptyFile | F::TooManyPages | F::TextTooLarge | F::PageTextTooLarge | F::TypeMismatch)
        }
        End::Died(_) => true,
    }
}

/// Keeps the saner text of each page, and the better end.
#[must_use]
pub fn settle(first: Reading, second: Reading) -> Reading {
    let title = |end: &End| if let End::Read(summary) = end { summary.title.clone() } else { None };
    let title = title(&first.end).or_else(|| title(&second.end));
    let ends = (first.end, second.end);
    let names = [name(&ends.0, Engine::First), name(&ends.1, Engine::Second)];
    let mut choices: BTreeMap<Option<u32>, [Option<Page>; 2]> = BTreeMap::new();
    for (index, pages) in [first.pages, second.pages].into_iter().enumerate() {
        for page in pages {
            if let Some(slot) = choices.entry(page.number).or_default().get_mut(index) {
                *slot = Some(page);
            }
        }
    }
    let mut pages = Vec::new();
    let mut engines = BTreeSet::new();
    for [first, second] in choices.into_values() {
        let Some((page, which)) = saner(first, second) else { continue };
        if page.text_bytes() > 0
            && let Some(name) = names.get(which)
        {
            engines.insert((which, name.clone()));
        }
        pages.push(page);
    }
    let engine = engines.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(", ");
    let has_text = pages.iter().any(|page| page.text_bytes() > 0);
    let end = end(ends, has_text, &pages);
    let end = if let End::Read(summary) = end { End::Read(Summary { title, engine, ..summary }) } else { end };
    Reading { pages, end }
}

/// The pages as a document, with the score of all its text; how the parser died, if it did with text to keep.
///
/// # Errors
/// The code of a document without any text.
pub fn conclude(reading: Reading) -> Result<(Extracted, Option<DocumentFailure>), End> {
    let score = score(&reading.pages);
    let mut extracted = Extracted::default();
    for page in reading.pages {
        if page.text_bytes() > 0 {
            extracted.push(page);
        }
    }
    let died = match reading.end {
        End::Read(summary) => {
            extracted.partial_pages = summary.failed_pages > 0;
            extracted.summary = summary;
            None
        }
        End::Refused(failure) => return Err(End::Refused(failure)),
        End::Died(failure) if extracted.is_empty() => return Err(End::Died(failure)),
        End::Died(failure) => {
            extracted.partial_pages = true;
            Some(failure)
        }
    };
    extracted.summary.sanity = score;
    extracted.drop_running_lines();
    Ok((extracted, died))
}

fn name(end: &End, engine: Engine) -> String {
    match (end, engine) {
        (End::Read(summary), _) => summary.engine.clone(),
        (_, Engine::First) => "pdf-extract".to_owned(),
        (_, Engine::Second) => "pdf_oxide".to_owned(),
    }
}

fn text(page: &Page) -> String {
    let blocks: Vec<&str> = page.sections.iter().flat_map(|s| &s.blocks).map(|b| b.text.as_str()).collect();
    blocks.join("\n")
}

fn is_failed(page: &Page) -> bool {
    page.tally.is_some_and(|tally| tally.failed)
}

fn sanity(page: &Page) -> Sanity {
    judge(&text(page), &page.tally.unwrap_or_default())
}

fn saner(first: Option<Page>, second: Option<Page>) -> Option<(Page, usize)> {
    let (first, mut second) = match (first, second) {
        (Some(first), Some(second)) => (first, second),
        (first, second) => return first.map(|page| (page, 0)).or_else(|| second.map(|page| (page, 1))),
    };
    // The operators are the page's, whoever counted them.
    if let (Some(of_first), Some(of_second)) = (first.tally, second.tally.as_mut()) {
        *of_second = Tally { operators: of_first.operators, ..*of_second };
    }
    let (a, b) = (sanity(&first), sanity(&second));
    let kept = !is_failed(&first) && a.score >= DOUBTFUL && a.letters >= b.letters * 0.6;
    // Much text of a little doubt is worth more than a little text of none.
    let worth = |s: Sanity| (s.score + 0.1) * s.letters.sqrt();
    if kept || worth(a) >= worth(b) { Some((first, 0)) } else { Some((second, 1)) }
}

fn end(ends: (End, End), has_text: bool, pages: &[Page]) -> End {
    let read = match &ends {
        (End::Read(summary), _) | (_, End::Read(summary)) => Some(summary),
        _ => None,
    };
    if has_text && let Some(summary) = read {
        let failed_pages = u32::try_from(pages.iter().filter(|page| is_failed(page)).count()).unwrap_or(u32::MAX);
        return End::Read(Summary { failed_pages, ..summary.clone() });
    }
    match ends {
        // What came is kept, once it is clear that no more will.
        (End::Died(failure), _) | (_, End::Died(failure)) if has_text => End::Died(failure),
        (End::Refused(a), End::Refused(b)) => End::Refused(if rank(a) >= rank(b) { a } else { b }),
        (End::Refused(failure), _) | (_, End::Refused(failure)) => End::Refused(failure),
        (_, last) => last,
    }
}

/// The more a code says about the document, the higher.
fn rank(failure: DocumentFailure) -> u8 {
    match failure {
        DocumentFailure::PdfCorrupt => 0,
        DocumentFailure::PdfNoText => 1,
        DocumentFailure::PdfUnreadable => 2,
        _ => 3,
    }
}

/// The mean of the pages, weighted by how much was drawn on each; none for formats that have no score.
fn score(pages: &[Page]) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for page in pages {
        let Some(tally) = page.tally else { continue };
        let weight = f64::from(tally.glyphs.max(tally.operators).max(1));
        sum += weight * sanity(page).score;
        weights += weight;
    }
    (weights > 0.0).then(|| (sum / weights * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use DocumentFailure as F;

    use super::*;
    use crate::{Block, BlockKind, Section};

    const PROSE: &str = "A sentence of the usual kind, with words of the usual length and spaces between them.";

    fn page(number: u32, text: &str, tally: Tally) -> Page {
        let blocks = vec![Block { kind: BlockKind::Paragraph, text: text.to_owned() }];
        let sections = if text.is_empty() { vec![] } else { vec![Section { heading_path: vec![], blocks }] };
        Page { number: Some(number), sections, tally: Some(tally) }
    }

    fn read(pages: Vec<Page>, engine: &str) -> Reading {
        let failed_pages = pages.iter().filter(|p| is_failed(p)).count() as u32;
        Reading { pages, end: End::Read(Summary { engine: engine.into(), failed_pages, ..Summary::default() }) }
    }

    fn plain(glyphs: u32) -> Tally {
        Tally { glyphs, ..Tally::default() }
    }

    #[test]
    fn the_second_engine_is_asked_only_in_doubt() {
        assert!(!is_doubtful(&read(vec![page(1, PROSE, plain(80))], "a")));
        assert!(is_doubtful(&read(vec![page(1, PROSE, Tally { failed: true, ..plain(80) })], "a")));
        assert!(is_doubtful(&read(vec![page(1, "", Tally { unmapped: 80, ..plain(80) })], "a")));
        for (failure, doubtful) in [(F::PdfNoText, true), (F::PdfEncrypted, true), (F::TooManyPages, false)] {
            assert_eq!(is_doubtful(&Reading { pages: vec![], end: End::Refused(failure) }), doubtful);
        }
        assert!(is_doubtful(&Reading { pages: vec![], end: End::Died(F::ParserCrashed) }));
    }

    #[test]
    fn each_page_comes_from_the_engine_that_read_it_better() {
        let glued = PROSE.replace(' ', "");
        let first = read(
            vec![
                page(1, PROSE, plain(80)),
                page(2, &glued, plain(80)),
                page(3, "half", Tally { failed: true, ..plain(4) }),
            ],
            "a",
        );
        let other = PROSE.replace("usual", "other");
        let second = read((1..=3).map(|n| page(n, &other, plain(80))).collect(), "b");
        let kept = settle(first, second);
        let texts: Vec<String> = kept.pages.iter().map(text).collect();
        assert_eq!(texts, [PROSE, other.as_str(), other.as_str()]);
        let (extracted, died) = conclude(kept).unwrap();
        assert_eq!(died, None);
        assert_eq!(extracted.summary.engine, "a, b");
        assert!(!extracted.partial_pages);
        assert!(extracted.summary.sanity.unwrap() > 0.9);
    }

    #[test]
    fn a_death_is_forgotten_when_the_other_engine_reads_to_the_end() {
        let first = Reading { pages: vec![page(1, PROSE, plain(80))], end: End::Died(F::ParserCrashed) };
        let second = read((1..=2).map(|n| page(n, PROSE, plain(80))).collect(), "b");
        let (extracted, died) = conclude(settle(first.clone(), second)).unwrap();
        assert_eq!((extracted.pages.len(), died), (2, None));
        let corrupt = Reading { pages: vec![], end: End::Refused(F::PdfCorrupt) };
        let (extracted, died) = conclude(settle(first, corrupt)).unwrap();
        assert_eq!((extracted.pages.len(), died), (1, Some(F::ParserCrashed)));
        assert!(extracted.partial_pages);
    }

    #[test]
    fn without_text_the_code_that_says_most_is_given() {
        let refused = |failure| Reading { pages: vec![], end: End::Refused(failure) };
        let died = |failure| Reading { pages: vec![], end: End::Died(failure) };
        let code = |a, b| conclude(settle(a, b)).unwrap_err();
        assert_eq!(code(refused(F::PdfCorrupt), refused(F::PdfNoText)), End::Refused(F::PdfNoText));
        assert_eq!(code(refused(F::PdfEncrypted), refused(F::PdfCorrupt)), End::Refused(F::PdfEncrypted));
        assert_eq!(code(refused(F::PdfNoText), died(F::ParserLimit)), End::Refused(F::PdfNoText));
        assert_eq!(code(died(F::ParserCrashed), died(F::ParserLimit)), End::Died(F::ParserLimit));
    }
}
