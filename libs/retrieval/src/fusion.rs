//! Reciprocal rank fusion (Cormack, Clarke, Büttcher 2009): ranked lists whose scores cannot be compared become one.

use std::collections::HashMap;
use std::hash::Hash;

/// Softens the difference between the first ranks; the constant of the paper.
const RANK_OFFSET: f64 = 60.0;

/// One ranked list.
#[derive(Clone, Debug)]
pub struct Leg<Id> {
    /// How much the list counts; not positive or not a number counts nothing.
    pub weight: f64,
    /// What it found, best first.
    pub ranked: Vec<Id>,
}

/// Something found by at least one list.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused<Id> {
    /// What.
    pub id: Id,
    /// The sum of weight / (60 + rank).
    pub score: f64,
    /// Its rank in each list, from 1, in the order of the lists.
    pub ranks: Vec<Option<u32>>,
}

/// All that the lists found, best first, ties by id.
#[must_use]
pub fn fuse<Id: Copy + Eq + Hash + Ord>(legs: &[Leg<Id>]) -> Vec<Fused<Id>> {
    let mut all: HashMap<Id, Fused<Id>> = HashMap::new();
    for (index, leg) in legs.iter().enumerate() {
        let weight = if leg.weight > 0.0 && leg.weight.is_finite() { leg.weight } else { continue };
        for (rank, id) in (1u32..).zip(&leg.ranked) {
            let fused = all.entry(*id).or_insert_with(|| Fused { id: *id, score: 0.0, ranks: vec![None; legs.len()] });
            // A list that names something twice means its better rank.
            if let Some(slot @ None) = fused.ranks.get_mut(index) {
                *slot = Some(rank);
                fused.score += weight / (RANK_OFFSET + f64::from(rank));
            }
        }
    }
    let mut all: Vec<Fused<Id>> = all.into_values().collect();
    all.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(legs: &[Leg<u32>]) -> Vec<u32> {
        fuse(legs).into_iter().map(|f| f.id).collect()
    }

    #[test]
    fn what_both_lists_find_comes_first_and_ties_go_by_id() {
        let legs = [Leg { weight: 1.0, ranked: vec![9, 1, 2] }, Leg { weight: 1.0, ranked: vec![2, 9] }];
        assert_eq!(ids(&legs), [9, 2, 1]);
        let legs = [Leg { weight: 1.0, ranked: vec![5] }, Leg { weight: 1.0, ranked: vec![3] }];
        assert_eq!(ids(&legs), [3, 5]);
    }

    #[test]
    fn the_score_is_the_published_formula() {
        let legs = [Leg { weight: 1.0, ranked: vec![7] }, Leg { weight: 0.5, ranked: vec![8, 7] }];
        let fused = fuse(&legs);
        assert_eq!(fused[0].id, 7);
        assert!((fused[0].score - (1.0 / 61.0 + 0.5 / 62.0)).abs() < 1e-12);
        assert_eq!(fused[0].ranks, [Some(1), Some(2)]);
    }

    #[test]
    fn a_list_without_weight_finds_nothing_and_a_repetition_counts_once() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let legs = [Leg { weight, ranked: vec![1] }, Leg { weight: 1.0, ranked: vec![2, 2] }];
            let fused = fuse(&legs);
            assert_eq!(fused.len(), 1);
            assert!((fused[0].score - 1.0 / 61.0).abs() < 1e-12);
        }
        assert!(fuse::<u32>(&[]).is_empty());
    }
}
