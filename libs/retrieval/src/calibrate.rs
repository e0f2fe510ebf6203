//! Fitting the weights of a store's legs to questions whose answers are known.
//!
//! Each question is searched once by each leg; what is fitted is only how their ranks are put together, so trying a pair
//! of weights costs nothing. Weights that are chosen on the questions they are judged by always look good. So the gain
//! that is told is that of questions that were held out: the questions are dealt into folds, for each fold weights are
//! chosen on all the others, and the fold is judged by them.

use std::collections::{HashMap, HashSet};

use domain::{ChunkId, DocumentId};
use serde::Serialize;

use crate::fusion::{self, Leg};

/// Fewer questions than this say nothing about weights.
pub const FEWEST_QUESTIONS: usize = 10;
/// Parts that the questions are dealt into.
const FOLDS: usize = 5;
/// Places that are judged: what a model is shown, more or less.
const TOP: usize = 10;
/// What the lexical leg may weigh where the vectors weigh 1. Only the ratio counts.
const RATIOS: [f64; 9] = [0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 5.0, 10.0];
/// Less of a gain than this on questions held out is taken for chance.
const LEAST_GAIN: f64 = 0.005;

/// What the legs found for a question, and what answers it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Chunks by vectors, best first, with their documents.
    pub vector: Vec<(ChunkId, DocumentId)>,
    /// Chunks by words, best first, with their documents.
    pub lexical: Vec<(ChunkId, DocumentId)>,
    /// Documents that answer it.
    pub documents: HashSet<DocumentId>,
}

/// How much each leg counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Weights {
    /// Ranks by vectors.
    pub vector: f64,
    /// Ranks by words.
    pub lexical: f64,
}

/// How well questions were answered, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// nDCG@10 over documents.
    pub ndcg: f64,
    /// Mean of one over the rank of the first document that answers, among 10.
    pub mrr: f64,
    /// Share of the answering documents that a leg found at all.
    pub recall: f64,
}

/// What a calibration came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Questions it is made of.
    pub questions: usize,
    /// The weights that the store has.
    pub before: Weights,
    /// How it answers with them.
    pub score_before: Score,
    /// The weights that answer all questions best.
    pub fitted: Weights,
    /// How held-out questions are answered by weights that were fitted to the others.
    pub score_held_out: Score,
    /// Whether that is a gain that is worth a change.
    pub improves: bool,
}

/// Fits weights. `None` when there are fewer than [`FEWEST_QUESTIONS`].
#[must_use]
pub fn calibrate(questions: &[Judged], before: Weights) -> Option<Calibration> {
    if questions.len() < FEWEST_QUESTIONS {
        return None;
    }
    let candidates = candidates(before);
    // Every question by every pair of weights, once.
    let table: Vec<Vec<Score>> = questions
        .iter()
        .map(|question| candidates.iter().map(|weights| answered(question, *weights)).collect())
        .collect();
    let all: Vec<&Vec<Score>> = table.iter().collect();
    let held_out = (0..FOLDS).flat_map(|fold| {
        let is_out = |place: usize| place % FOLDS == fold;
        let kept =
            |out: bool| table.iter().enumerate().filter(move |(place, _)| is_out(*place) == out).map(|(_, row)| row);
        let chosen = best(&kept(false).collect::<Vec<_>>());
        kept(true).filter_map(move |row| row.get(chosen).copied()).collect::<Vec<_>>()
    });
    let score_held_out = mean(held_out);
    let score_before = mean(table.iter().filter_map(|row| row.first().copied()));
    let fitted = candidates.get(best(&all)).copied().unwrap_or(before);
    Some(Calibration {
        questions: questions.len(),
        before,
        score_before,
        fitted,
        score_held_out,
        improves: fitted != before && score_held_out.ndcg >= score_before.ndcg + LEAST_GAIN,
    })
}

/// Pairs of weights to try: first those that are set, so that no other is chosen without being better. No leg is taken
/// out: a file of questions does not ask for everything, and codes and names are found by words alone.
fn candidates(before: Weights) -> Vec<Weights> {
    let mut all = vec![before, Weights { vector: 1.0, lexical: 1.0 }];
    all.extend(RATIOS.into_iter().filter(|ratio| *ratio != 1.0).map(|lexical| Weights { vector: 1.0, lexical }));
    all
}

/// The place of the best pair; of several that are equal the first.
fn best(rows: &[&Vec<Score>]) -> usize {
    let pairs = rows.first().map_or(0, |row| row.len());
    let total = |pair: usize| -> f64 { rows.iter().filter_map(|row| row.get(pair)).map(|score| score.ndcg).sum() };
    let better = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0));
    (0..pairs).map(|pair| (pair, total(pair))).max_by(better).map_or(0, |(pair, _)| pair)
}

fn answered(question: &Judged, weights: Weights) -> Score {
    let of: HashMap<ChunkId, DocumentId> = question.vector.iter().chain(&question.lexical).copied().collect();
    let chunks = |leg: &[(ChunkId, DocumentId)]| leg.iter().map(|(chunk, _)| *chunk).collect();
    let fused = fusion::fuse(&[
        Leg { weight: weights.vector, ranked: chunks(&question.vector) },
        Leg { weight: weights.lexical, ranked: chunks(&question.lexical) },
    ]);
    let mut seen = HashSet::new();
    let documents = fused.iter().filter_map(|fused| of.get(&fused.id)).filter(|document| seen.insert(**document));
    let ranked: Vec<bool> = documents.map(|document| question.documents.contains(document)).collect();
    let top = ranked.iter().take(TOP);
    let gain = |place: usize| 1.0 / (place as f64 + 2.0).log2();
    let ideal: f64 = (0..question.documents.len().min(TOP)).map(gain).sum();
    let got: f64 = top.clone().enumerate().filter(|(_, answers)| **answers).map(|(place, _)| gain(place)).sum();
    let found = ranked.iter().filter(|answers| **answers).count();
    Score {
        ndcg: if ideal > 0.0 { got / ideal } else { 0.0 },
        mrr: top.clone().position(|answers| *answers).map_or(0.0, |place| 1.0 / (place as f64 + 1.0)),
        recall: found as f64 / question.documents.len().max(1) as f64,
    }
}

fn mean(scores: impl Iterator<Item = Score>) -> Score {
    let (mut sum, mut count) = (Score::default(), 0_u32);
    for score in scores {
        sum = Score { ndcg: sum.ndcg + score.ndcg, mrr: sum.mrr + score.mrr, recall: sum.recall + score.recall };
        count += 1;
    }
    let count = f64::from(count.max(1));
    Score { ndcg: sum.ndcg / count, mrr: sum.mrr / count, recall: sum.recall / count }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Weights = Weights { vector: 1.0, lexical: 1.0 };

    fn leg(chunks: impl IntoIterator<Item = i64>) -> Vec<(ChunkId, DocumentId)> {
        chunks.into_iter().map(|chunk| (ChunkId(chunk), DocumentId(chunk))).collect()
    }

    /// A question whose answer is first by words, and which vectors lead astray.
    fn by_words(answer: i64) -> Judged {
        let noise = 1000 + answer * 100;
        Judged {
            vector: leg(noise..noise + 20),
            lexical: leg([answer].into_iter().chain((noise..noise + 20).rev())),
            documents: HashSet::from([DocumentId(answer)]),
        }
    }

    #[test]
    fn a_leg_that_leads_astray_is_weighed_down() {
        let questions: Vec<Judged> = (1..=20).map(by_words).collect();
        let done = calibrate(&questions, EVEN).unwrap();
        assert!(done.fitted.lexical > done.fitted.vector && done.improves, "{done:?}");
        assert!(done.score_held_out.ndcg > done.score_before.ndcg + 0.1, "{done:?}");
        let swapped: Vec<Judged> = questions
            .into_iter()
            .map(|judged| Judged { vector: judged.lexical, lexical: judged.vector, ..judged })
            .collect();
        let done = calibrate(&swapped, EVEN).unwrap();
        assert!(done.fitted.vector > done.fitted.lexical && done.improves, "{done:?}");
    }

    #[test]
    fn nothing_is_changed_without_a_gain() {
        let found = |answer: i64| Judged {
            vector: leg([answer, 900]),
            lexical: leg([answer, 901]),
            documents: HashSet::from([DocumentId(answer)]),
        };
        let questions: Vec<Judged> = (1..=20).map(found).collect();
        let done = calibrate(&questions, EVEN).unwrap();
        assert_eq!((done.fitted, done.improves, done.score_before.ndcg), (EVEN, false, 1.0));
        assert_eq!(calibrate(&questions[..9], EVEN), None);
    }

    #[test]
    fn what_helps_some_questions_and_hurts_as_many_is_no_gain() {
        // Half of the questions are answered by one leg and half by the other, so what is gained on one half is lost on the
        // other.
        let questions: Vec<Judged> = (1..=20)
            .map(|answer| {
                let right = leg([answer, 5000 + answer]);
                let wrong = leg([6000 + answer, 7000 + answer]);
                let (vector, lexical) = if answer % 2 == 0 { (right, wrong) } else { (wrong, right) };
                Judged { vector, lexical, documents: HashSet::from([DocumentId(answer)]) }
            })
            .collect();
        let done = calibrate(&questions, EVEN).unwrap();
        assert!(!done.improves, "{done:?}");
    }

    #[test]
    fn documents_count_once_and_at_their_best_chunk() {
        let question = Judged {
            vector: vec![(ChunkId(1), DocumentId(7)), (ChunkId(2), DocumentId(7)), (ChunkId(3), DocumentId(8))],
            lexical: Vec::new(),
            documents: HashSet::from([DocumentId(8), DocumentId(9)]),
        };
        let score = answered(&question, EVEN);
        let second = 1.0 / 3.0_f64.log2();
        assert!((score.ndcg - second / (1.0 + second)).abs() < 1e-12);
        assert_eq!((score.mrr, score.recall), (0.5, 0.5));
    }
}
