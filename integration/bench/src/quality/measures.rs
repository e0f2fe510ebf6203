//! How good a ranking is, by the judgements of a collection.

use std::collections::{HashMap, HashSet};

/// Places that nDCG and MRR look at.
const TOP: usize = 10;
/// Places that recall looks at.
pub(crate) const DEEP: usize = 100;

/// Means over the queries of a collection, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measures {
    /// nDCG@10 (Järvelin, Kekäläinen 2002), the gains as judged.
    pub(crate) ndcg: f64,
    /// MRR@10: one over the rank of the first relevant document.
    pub(crate) mrr: f64,
    /// The share of the relevant documents among the first 100.
    pub(crate) recall: f64,
}

impl Measures {
    /// Of one ranking; a document that is named again counts where it was named first.
    pub(crate) fn of(ranked: &[usize], relevant: &HashMap<usize, f64>) -> Self {
        let mut seen = HashSet::new();
        let ranked: Vec<usize> = ranked.iter().copied().filter(|document| seen.insert(*document)).collect();
        let gain = |document: &usize| relevant.get(document).copied().unwrap_or(0.0);
        let mut best: Vec<f64> = relevant.values().copied().collect();
        best.sort_unstable_by(|a, b| b.total_cmp(a));
        let ideal = discounted(best.into_iter());
        let first = ranked.iter().take(TOP).position(|document| gain(document) > 0.0);
        let found = ranked.iter().take(DEEP).filter(|document| gain(document) > 0.0).count();
        Self {
            ndcg: if ideal > 0.0 { discounted(ranked.iter().map(gain)) / ideal } else { 0.0 },
            mrr: first.map_or(0.0, |place| 1.0 / (place as f64 + 1.0)),
            recall: found as f64 / relevant.len().max(1) as f64,
        }
    }

    /// The means of several.
    pub(crate) fn mean(all: &[Self]) -> Self {
        let count = all.len().max(1) as f64;
        let mean = |member: fn(&Self) -> f64| all.iter().map(member).sum::<f64>() / count;
        Self { ndcg: mean(|m| m.ndcg), mrr: mean(|m| m.mrr), recall: mean(|m| m.recall) }
    }
}

fn discounted(gains: impl Iterator<Item = f64>) -> f64 {
    gains.take(TOP).enumerate().map(|(place, gain)| gain / (place as f64 + 2.0).log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_the_published_formulas() {
        let relevant = HashMap::from([(1, 3.0), (2, 1.0)]);
        let measures = Measures::of(&[9, 2, 1], &relevant);
        let ideal = 3.0 + 1.0 / 3.0_f64.log2();
        let got = 1.0 / 3.0_f64.log2() + 3.0 / 2.0;
        assert!((measures.ndcg - got / ideal).abs() < 1e-12);
        assert_eq!((measures.mrr, measures.recall), (0.5, 1.0));
        let perfect = Measures::of(&[1, 2], &relevant);
        assert_eq!(perfect, Measures { ndcg: 1.0, mrr: 1.0, recall: 1.0 });
        assert_eq!(Measures::of(&[], &relevant), Measures::default());
    }

    #[test]
    fn a_document_counts_once_and_only_as_deep_as_is_looked() {
        let relevant = HashMap::from([(1, 1.0), (500, 1.0)]);
        let twice = Measures::of(&[7, 7, 1, 1], &relevant);
        assert_eq!((twice.mrr, twice.recall), (0.5, 0.5));
        let deep: Vec<usize> = (10..109).chain([1, 500]).collect();
        let deep = Measures::of(&deep, &relevant);
        assert_eq!(deep, Measures { ndcg: 0.0, mrr: 0.0, recall: 0.5 });
        assert_eq!(Measures::mean(&[twice, deep]).recall, 0.5);
    }
}
