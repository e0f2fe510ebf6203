//! The order in which the targets of a route are tried.

use rand::{Rng, RngExt};

/// The targets of a route, given as (group, weight), in the order to try them: group after group, lowest number first,
/// and inside a group by lot, where at every place a target is drawn with a chance proportional to its weight among
/// those that are left. Every target is there once, as its index in `targets`; those of weight 0 come last in their
/// group.
#[must_use]
pub fn order(targets: &[(i16, u32)], random: &mut impl Rng) -> Vec<usize> {
    let mut lots: Vec<(i16, f64, usize)> = targets
        .iter()
        .enumerate()
        .map(|(index, (group, weight))| {
            // The least of exponentially distributed times belongs to each with a chance proportional to its rate, and
            // so does the next among the rest: sorting them draws without replacement.
            let time = -(1.0 - random.random::<f64>()).ln();
            let lot = if *weight == 0 { f64::INFINITY } else { time / f64::from(*weight) };
            (*group, lot, index)
        })
        .collect();
    lots.sort_by(|(group, lot, _), (other_group, other_lot, _)| group.cmp(other_group).then(lot.total_cmp(other_lot)));
    lots.into_iter().map(|(_, _, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn every_order_of_a_group_has_its_share() {
        let weights = [5_u32, 3, 1, 1];
        let targets: Vec<_> = weights.iter().map(|weight| (0, *weight)).collect();
        let mut random = StdRng::seed_from_u64(0x5eed);
        let rounds = 200_000;
        let mut seen: HashMap<Vec<usize>, u32> = HashMap::new();
        for _ in 0..rounds {
            *seen.entry(order(&targets, &mut random)).or_default() += 1;
        }
        assert_eq!(seen.len(), 24);
        let mut deviation = 0.0;
        for (permutation, count) in &seen {
            // Drawn one after the other without replacement.
            let mut left = 10.0;
            let mut chance = 1.0;
            for index in permutation {
                chance *= f64::from(weights[*index]) / left;
                left -= f64::from(weights[*index]);
            }
            let expected = chance * f64::from(rounds);
            deviation += (f64::from(*count) - expected).powi(2) / expected;
        }
        // Chi-squared with 23 degrees of freedom exceeds 49.7 once in a thousand; the seed makes it the same each time.
        assert!(deviation < 49.7, "chi-squared is {deviation}");
    }

    #[test]
    fn groups_come_in_order_however_heavy_and_weight_zero_comes_last_in_its_group() {
        let targets = [(2, 1_000_000), (1, 0), (1, 1), (-1, 0), (1, 7)];
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..1000 {
            let order = order(&targets, &mut random);
            assert_eq!((order[0], order[3], order[4]), (3, 1, 0));
        }
        assert_eq!(super::order(&[], &mut random), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn every_target_is_there_once(targets in prop::collection::vec((-3_i16..3, any::<u32>()), 0..32), seed: u64) {
            let order = order(&targets, &mut StdRng::seed_from_u64(seed));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..targets.len()).collect::<Vec<_>>());
            prop_assert!(order.is_sorted_by_key(|index| targets[*index].0));
        }
    }
}
