//! BM25 over arrays of postings.
//!
//! The formula is Robertson's with the variant of the inverse document frequency that is never negative
//! (`ln(1 + (N - n + 0.5) / (n + 0.5))`, as in Lucene).

use std::cmp::Ordering;
use std::collections::HashMap;

/// How soon repetitions of a term stop to count.
const K1: f64 = 1.2;
/// How much a chunk's length counts.
const B: f64 = 0.75;
/// A term in a larger share of the chunks than this brings no candidates of its own: it tells hardly anything, and its
/// list is the longest.
const COMMON_SHARE: f64 = 0.3;
/// In fewer chunks than this no list is long.
const COMMON_FROM_CHUNKS: usize = 100;

/// What is searched, as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Corpus {
    /// Chunks.
    pub chunks: u64,
    /// Terms of all chunks, repetitions included.
    pub terms: u64,
}

/// One term's occurrences in one segment.
#[derive(Clone, Copy, Debug)]
pub struct Posting<'a> {
    /// The segment.
    pub segment: i64,
    /// The chunks that have the term, each once.
    pub ordinals: &'a [i32],
    /// How often each has it.
    pub frequencies: &'a [i16],
}

/// The lengths of a segment's chunks.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The segment.
    pub id: i64,
    /// The ordinal of its first chunk.
    pub first_ordinal: i32,
    /// The number of terms in each of its chunks.
    pub lengths: &'a [i32],
}

/// A chunk that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The segment the chunk is in.
    pub segment: i64,
    /// Its ordinal in the document.
    pub ordinal: i32,
    /// Its score; only comparable within one query.
    pub score: f64,
}

/// The `k` best chunks, best first, ties by segment and ordinal. `terms` has the postings of each term of the query.
///
/// Postings of segments that are not among `segments`, and ordinals outside of their segment, are left out: the two
/// were read one after the other, and a document may have been replaced in between.
#[must_use]
pub fn top_k(corpus: Corpus, terms: &[Vec<Posting<'_>>], segments: &[Segment<'_>], k: usize) -> Vec<Hit> {
    let segments: HashMap<i64, &Segment<'_>> = segments.iter().map(|s| (s.id, s)).collect();
    let average = (corpus.terms as f64 / corpus.chunks.max(1) as f64).max(1.0);
    let counted: Vec<(usize, &Vec<Posting<'_>>)> =
        terms.iter().map(|t| (t.iter().map(|p| p.ordinals.len()).sum(), t)).collect();
    let is_common = |n: usize| n > COMMON_FROM_CHUNKS && n as f64 > COMMON_SHARE * corpus.chunks as f64;
    let selective = counted.iter().any(|(n, _)| *n > 0 && !is_common(*n));
    let mut scores: HashMap<(i64, i32), f64> = HashMap::new();
    // Those that bring candidates come first, so that the common ones find them.
    let (common, rare): (Vec<_>, Vec<_>) = counted.into_iter().partition(|(n, _)| is_common(*n));
    for (brings, (n, postings)) in
        rare.into_iter().map(|t| (true, t)).chain(common.into_iter().map(|t| (!selective, t)))
    {
        let idf = inverse_document_frequency(corpus.chunks, n);
        for posting in postings {
            let Some(segment) = segments.get(&posting.segment) else { continue };
            for (ordinal, frequency) in posting.ordinals.iter().zip(posting.frequencies) {
                let Some(length) = length_of(segment, *ordinal) else { continue };
                let tf = f64::from((*frequency).max(0));
                let norm = K1 * (1.0 - B + B * f64::from(length.max(0)) / average);
                let gain = idf * tf * (K1 + 1.0) / (tf + norm);
                let place = (posting.segment, *ordinal);
                if brings {
                    *scores.entry(place).or_default() += gain;
                } else if let Some(score) = scores.get_mut(&place) {
                    *score += gain;
                }
            }
        }
    }
    best(scores.into_iter().map(|((segment, ordinal), score)| Hit { segment, ordinal, score }).collect(), k)
}

fn inverse_document_frequency(chunks: u64, having: usize) -> f64 {
    let having = having as f64;
    // A count that was read before the postings may be behind them.
    let without = (chunks as f64 - having).max(0.0);
    (1.0 + (without + 0.5) / (having + 0.5)).ln()
}

fn length_of(segment: &Segment<'_>, ordinal: i32) -> Option<i32> {
    let index = usize::try_from(ordinal.checked_sub(segment.first_ordinal)?).ok()?;
    segment.lengths.get(index).copied()
}

fn best(mut hits: Vec<Hit>, k: usize) -> Vec<Hit> {
    if k == 0 {
        return Vec::new();
    }
    if hits.len() > k {
        hits.select_nth_unstable_by(k - 1, order);
        hits.truncate(k);
    }
    hits.sort_unstable_by(order);
    hits
}

fn order(a: &Hit, b: &Hit) -> Ordering {
    b.score.total_cmp(&a.score).then(a.segment.cmp(&b.segment)).then(a.ordinal.cmp(&b.ordinal))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: &[i32] = &[10; 1000];

    fn posting<'a>(ordinals: &'a [i32], frequencies: &'a [i16]) -> Vec<Posting<'a>> {
        vec![Posting { segment: 1, ordinals, frequencies }]
    }

    fn search(terms: &[Vec<Posting<'_>>], k: usize) -> Vec<(i32, f64)> {
        let corpus = Corpus { chunks: 1000, terms: 10_000 };
        let segments = [Segment { id: 1, first_ordinal: 0, lengths: LENGTHS }];
        top_k(corpus, terms, &segments, k).into_iter().map(|h| (h.ordinal, h.score)).collect()
    }

    #[test]
    fn the_score_is_the_published_formula() {
        // 1 of 1000 chunks, of average length, twice: ln(1 + 999.5 / 1.5) * 2 * 2.2 / (2 + 1.2).
        let hits = search(&[posting(&[7], &[2])], 10);
        assert_eq!(hits.len(), 1);
        assert_eq!(hits[0].0, 7);
        assert!((hits[0].1 - 8.942_023).abs() < 1e-4, "{}", hits[0].1);
    }

    #[test]
    fn rare_terms_weigh_more_and_ties_go_by_place() {
        let many: Vec<i32> = (100..200).collect();
        let once = vec![1i16; 100];
        let hits = search(&[posting(&many, &once), posting(&[500], &[1])], 4);
        assert_eq!(hits.iter().map(|h| h.0).collect::<Vec<_>>(), [500, 100, 101, 102]);
    }

    #[test]
    fn a_term_that_is_everywhere_scores_and_brings_no_candidates() {
        let everywhere: Vec<i32> = (0..900).collect();
        let once = vec![1i16; 900];
        let rare = posting(&[5, 950], &[1, 1]);
        let hits = search(&[posting(&everywhere, &once), rare], 10);
        assert_eq!(hits.iter().map(|h| h.0).collect::<Vec<_>>(), [5, 950]);
        assert!(hits[0].1 > hits[1].1);
        // Alone, or beside a word that is nowhere, it is all there is.
        assert_eq!(search(&[posting(&everywhere, &once)], 2).len(), 2);
        assert_eq!(search(&[posting(&everywhere, &once), Vec::new()], 2).len(), 2);
    }

    #[test]
    fn short_chunks_win_over_long_ones() {
        let corpus = Corpus { chunks: 2, terms: 110 };
        let segments = [Segment { id: 1, first_ordinal: 40, lengths: &[100, 10] }];
        let hits = top_k(corpus, &[posting(&[40, 41], &[1, 1])], &segments, 2);
        assert_eq!(hits.iter().map(|h| h.ordinal).collect::<Vec<_>>(), [41, 40]);
    }

    #[test]
    fn what_does_not_fit_together_is_left_out() {
        let corpus = Corpus { chunks: 1, terms: 0 };
        let segments = [Segment { id: 1, first_ordinal: 0, lengths: &[0] }];
        let terms = [vec![
            Posting { segment: 1, ordinals: &[0, 1, -1, i32::MIN], frequencies: &[1, 1, 1, 1] },
            Posting { segment: 2, ordinals: &[0], frequencies: &[1] },
        ]];
        let hits = top_k(corpus, &terms, &segments, 10);
        assert_eq!(hits.len(), 1);
        assert!(hits[0].score.is_finite());
        assert!(top_k(corpus, &terms, &segments, 0).is_empty());
        assert!(top_k(Corpus { chunks: 0, terms: 0 }, &[], &[], 10).is_empty());
    }
}
