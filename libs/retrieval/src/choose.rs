//! Which of the fused passages are shown, and in what pieces.

use std::collections::HashMap;

use domain::DocumentId;
use store::search::Passage;

use crate::near::Sketch;
use crate::search::Hit;

/// One long document must not fill the whole answer.
const HITS_PER_DOCUMENT: usize = 3;

/// Between passages that were cut apart without an overlap.
const SEAM: &str = "\n";

/// The best hits with at most [`HITS_PER_DOCUMENT`] of one document, and of passages that say the same only the best.
pub(crate) fn choose(ranked: impl IntoIterator<Item = Hit>, most: usize) -> Vec<Hit> {
    let mut of_document: HashMap<DocumentId, usize> = HashMap::new();
    let mut kept: Vec<(Hit, Sketch)> = Vec::new();
    for hit in ranked {
        if kept.len() >= most {
            break;
        }
        let of_this = of_document.entry(hit.passage.document).or_default();
        if *of_this >= HITS_PER_DOCUMENT {
            continue;
        }
        let sketch = Sketch::of(&hit.passage.content);
        if kept.iter().any(|(_, other)| sketch.is_near(other)) {
            continue;
        }
        *of_this += 1;
        kept.push((hit, sketch));
    }
    kept.into_iter().map(|(hit, _)| hit).collect()
}

/// A passage and the last chunk that is in it.
struct Run {
    hit: Hit,
    last: i32,
}

/// Puts passages that follow each other in a section and on a page of their document together, as long as they have at
/// most so many tokens: a model reads one text, and not an end and then a beginning. The better of two gives place and
/// scores.
pub(crate) fn join_neighbours(hits: Vec<Hit>, most_tokens: u32) -> Vec<Hit> {
    let mut waiting: Vec<Option<Run>> =
        hits.into_iter().map(|hit| Some(Run { last: hit.passage.ordinal, hit })).collect();
    let mut joined: Vec<Hit> = Vec::with_capacity(waiting.len());
    for at in 0..waiting.len() {
        let Some(mut run) = waiting.get_mut(at).and_then(Option::take) else { continue };
        // What was put on may have a neighbour that was none before.
        while let Some(other) =
            waiting.iter_mut().find_map(|slot| slot.take_if(|other| run.may_take(other, most_tokens)))
        {
            run = run.with(other);
        }
        joined.push(run.hit);
    }
    joined
}

impl Run {
    fn may_take(&self, other: &Self, most_tokens: u32) -> bool {
        let (a, b) = (&self.hit.passage, &other.hit.passage);
        // A passage that is quoted stands on one page, as its chunks do.
        let follows = |last: i32, first: i32| last.checked_add(1) == Some(first) && a.page_from == b.page_from;
        a.document == b.document
            && a.heading_path == b.heading_path
            && (follows(self.last, b.ordinal) || follows(other.last, a.ordinal))
            && i64::from(a.token_count) + i64::from(b.token_count) <= i64::from(most_tokens)
    }

    /// Both, with the place and scores of this one.
    fn with(self, other: Self) -> Self {
        let last = self.last.max(other.last);
        let (first, second) = if self.hit.passage.ordinal < other.hit.passage.ordinal {
            (&self.hit.passage, &other.hit.passage)
        } else {
            (&other.hit.passage, &self.hit.passage)
        };
        let passage = Passage {
            chunk: self.hit.passage.chunk,
            content: text(first, second),
            char_to: second.char_to.max(first.char_to),
            token_count: first.token_count.saturating_add(second.token_count),
            ..first.clone()
        };
        Self { hit: Hit { passage, ..self.hit }, last }
    }
}

/// The text of both, what they share once.
fn text(first: &Passage, second: &Passage) -> String {
    let shared = usize::try_from(first.char_to.saturating_sub(second.char_from)).unwrap_or(0);
    let cut = second.content.char_indices().nth(shared).map_or(second.content.len(), |(at, _)| at);
    let (overlap, rest) = second.content.split_at(cut);
    if !overlap.is_empty() && first.content.ends_with(overlap) {
        return format!("{}{rest}", first.content);
    }
    format!("{}{SEAM}{}", first.content, second.content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::hit;

    fn chunks(hits: &[Hit]) -> Vec<i64> {
        hits.iter().map(|hit| hit.passage.chunk.0).collect()
    }

    /// A chunk of a document by its place and where it stands.
    fn piece(ordinal: i32, from: i32, content: &str) -> Hit {
        let mut hit = hit(i64::from(ordinal) + 100, 1, content);
        hit.passage.ordinal = ordinal;
        (hit.passage.char_from, hit.passage.char_to) = (from, from + i32::try_from(content.chars().count()).unwrap());
        hit.passage.token_count = 100;
        hit
    }

    #[test]
    fn a_document_fills_at_most_three_places_and_a_text_one() {
        let hits = vec![
            hit(1, 1, "a"),
            hit(2, 1, "A "),
            hit(3, 1, "b"),
            hit(4, 1, "c"),
            hit(5, 1, "d"),
            hit(6, 2, "a"),
            hit(7, 2, "e"),
        ];
        assert_eq!(chunks(&choose(hits.clone(), 10)), [1, 3, 4, 7]);
        assert_eq!(chunks(&choose(hits, 2)), [1, 3]);
    }

    #[test]
    fn neighbours_become_one_passage_without_what_they_share() {
        let hits = vec![piece(5, 20, "four five six"), hit(1, 2, "other"), piece(4, 10, "two three four")];
        let joined = join_neighbours(hits, 1000);
        assert_eq!(chunks(&joined), [105, 1]);
        let passage = &joined[0].passage;
        assert_eq!((passage.content.as_str(), passage.ordinal), ("two three four five six", 4));
        assert_eq!((passage.char_from, passage.char_to, passage.token_count), (10, 33, 200));
    }

    #[test]
    fn a_chain_is_joined_whatever_its_order_as_long_as_it_has_room() {
        let chain = || [6, 4, 5].map(|ordinal| piece(ordinal, ordinal * 10, &format!("part {ordinal}"))).to_vec();
        let joined = join_neighbours(chain(), 300);
        assert_eq!((joined.len(), joined[0].passage.content.as_str()), (1, "part 4\npart 5\npart 6"));
        assert_eq!(joined[0].passage.chunk.0, 106);
        assert_eq!(chunks(&join_neighbours(chain(), 299)), [106, 104]);
        assert_eq!(chunks(&join_neighbours(chain(), 0)), [106, 104, 105]);
    }

    #[test]
    fn sections_pages_and_documents_stay_apart() {
        let mut other_section = piece(5, 20, "b");
        other_section.passage.heading_path = "Care > Cleaning".to_owned();
        let mut other_page = piece(5, 20, "c");
        (other_page.passage.page_from, other_page.passage.page_to) = (Some(5), Some(5));
        let mut other_document = piece(5, 20, "d");
        other_document.passage.document = DocumentId(9);
        let apart = vec![piece(4, 10, "a"), other_section, other_page, other_document];
        assert_eq!(join_neighbours(apart, 1000).len(), 4);
    }

    #[test]
    fn an_overlap_that_is_not_there_is_not_cut_off() {
        let joined = join_neighbours(vec![piece(4, 10, "kept whole"), piece(5, 15, "another text")], 1000);
        assert_eq!(joined[0].passage.content, "kept whole\nanother text");
    }
}
