//! Money and prices, in whole numbers only.

use std::ops::Add;

use serde::{Deserialize, Serialize};

const TOKENS_PER_PRICE: i128 = 1_000_000;

/// An amount in nano-USD (10⁻⁹ of a US dollar).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoUsd(pub i64);

impl NanoUsd {
    /// Nothing.
    pub const ZERO: Self = Self(0);
}

impl Add for NanoUsd {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// A price in nano-USD per million tokens, so that 0.0375 USD per million is still a whole number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Price(pub i64);

impl Price {
    fn of(self, tokens: i64) -> i128 {
        i128::from(self.0.max(0)) * i128::from(tokens.max(0))
    }
}

/// The prices of one model at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceSnapshot {
    /// Uncached prompt tokens.
    pub input: Price,
    /// Completion tokens, reasoning included.
    pub output: Price,
    /// Prompt tokens read from the provider's cache.
    pub cache_read: Price,
    /// Prompt tokens written to the provider's cache.
    pub cache_write: Price,
}

impl PriceSnapshot {
    /// What a call costs. `prompt` includes `cached` and `written`; figures below zero count as zero and the two parts
    /// never exceed the whole. Fractions of a nano-USD are rounded up once, at the end.
    #[must_use]
    pub fn cost(&self, prompt: i64, cached: i64, written: i64, completion: i64) -> NanoUsd {
        let prompt = prompt.max(0);
        let cached = cached.clamp(0, prompt);
        let written = written.clamp(0, prompt - cached);
        let total = self.input.of(prompt - cached - written)
            + self.cache_read.of(cached)
            + self.cache_write.of(written)
            + self.output.of(completion);
        let rounded = (total + TOKENS_PER_PRICE - 1) / TOKENS_PER_PRICE;
        NanoUsd(i64::try_from(rounded).unwrap_or(i64::MAX))
    }

    /// The price a prompt token is held at before it is known whether the provider caches it.
    #[must_use]
    pub fn dearest_input(&self) -> Price {
        self.input.max(self.cache_write)
    }

    /// Of each price the larger one: what covers whichever of two targets answers.
    #[must_use]
    pub fn dearest(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cache_read: self.cache_read.max(other.cache_read),
            cache_write: self.cache_write.max(other.cache_write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USD_PER_MILLION: i64 = 1_000_000_000;

    #[test]
    fn cached_and_written_tokens_have_their_own_price() {
        let prices = PriceSnapshot {
            input: Price(3 * USD_PER_MILLION),
            output: Price(15 * USD_PER_MILLION),
            cache_read: Price(USD_PER_MILLION * 3 / 10),
            cache_write: Price(USD_PER_MILLION * 375 / 100),
        };
        assert_eq!(prices.cost(250, 200, 40, 500), NanoUsd(7_740_000));
    }

    #[test]
    fn negative_and_inconsistent_figures_never_lower_a_cost() {
        let prices = PriceSnapshot { input: Price(1_000_000), ..PriceSnapshot::default() };
        assert_eq!(prices.cost(-5, -5, -5, -5), NanoUsd::ZERO);
        assert_eq!(prices.cost(10, 0, 0, 0), NanoUsd(10));
        assert_eq!(prices.cost(10, 99, 99, 0), NanoUsd(0));
    }

    #[test]
    fn a_fraction_is_rounded_up_once() {
        let prices = PriceSnapshot { input: Price(1), output: Price(1), ..PriceSnapshot::default() };
        assert_eq!(prices.cost(1, 0, 0, 1), NanoUsd(1));
    }
}
