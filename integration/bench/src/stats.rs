//! Percentiles, medians and how rounds are interleaved.

use rand::Rng;
use rand::seq::SliceRandom as _;

/// Samples of one window, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Takes samples in any order.
    pub(crate) fn new(mut samples: Vec<f64>) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        Self(samples)
    }

    /// The smallest sample that at least this share of all samples does not exceed (nearest rank); 0 without samples.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.max(1) - 1).or(self.0.last()).copied().unwrap_or(0.0)
    }

    /// The largest; 0 without samples.
    pub(crate) fn largest(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The middle value, or the mean of the two in the middle; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
    if sorted.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle.saturating_sub(1)), at(middle)) }
}

/// For every round the order in which the variants are measured: each once, in random order.
pub(crate) fn interleaved<R: Rng + ?Sized>(variants: usize, rounds: usize, random: &mut R) -> Vec<Vec<usize>> {
    (0..rounds)
        .map(|_| {
            let mut order: Vec<usize> = (0..variants).collect();
            order.shuffle(random);
            order
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let samples = Samples::new((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            [0.0, 0.5, 0.99, 0.995, 1.0].map(|share| samples.percentile(share)),
            [1.0, 100.0, 198.0, 199.0, 200.0]
        );
        assert_eq!(Samples::new(vec![7.0]).percentile(0.99), 7.0);
        assert_eq!((Samples::default().percentile(0.5), Samples::default().largest()), (0.0, 0.0));
    }

    #[test]
    fn a_median_is_between_the_two_in_the_middle() {
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 100.0]), 3.5);
        assert_eq!((median(&[]), median(&[2.0])), (0.0, 2.0));
    }

    #[test]
    fn every_round_has_every_variant_once_and_orders_differ() {
        let rounds = interleaved(3, 50, &mut StdRng::seed_from_u64(1));
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
        for first in 0..3 {
            assert!(rounds.iter().filter(|round| round[0] == first).count() > 5, "{first} hardly ever comes first");
        }
    }
}
