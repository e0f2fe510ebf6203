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

    /// The amount of so many US dollars, a decimal number as JSON writes it (RFC 8259, 6). Fractions of a nano-USD are
    /// rounded up. `None` for what is no such number, for less than nothing, and for more than fits.
    #[must_use]
    pub fn of_dollars(text: &str) -> Option<Self> {
        const DECIMALS: i64 = 9;
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = || whole.bytes().chain(fraction.bytes());
        if whole.is_empty() || !digits().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        // So many digits, zeros behind them included, are whole nano-USD.
        let kept = i64::try_from(whole.len()).ok()? + DECIMALS + i64::from(exponent);
        let (mut nano, mut has_rest, mut read) = (0_i64, false, 0_i64);
        for digit in digits() {
            if read < kept {
                nano = nano.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
            } else {
                has_rest |= digit != b'0';
            }
            read += 1;
        }
        while read < kept && nano > 0 {
            nano = nano.checked_mul(10)?;
            read += 1;
        }
        nano.checked_add(i64::from(has_rest)).map(Self)
    }
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
    fn dollars_are_read_to_the_last_digit() {
        for (text, nano) in [
            ("0", 0),
            ("0.0", 0),
            ("1", 1_000_000_000),
            ("0.95", 950_000_000),
            ("0.1", 100_000_000),
            ("0.00014", 140_000),
            ("1.4e-4", 140_000),
            ("14E-5", 140_000),
            ("2e+1", 20_000_000_000),
            ("0e999999999", 0),
            ("0.000000001", 1),
            ("0.0000000010", 1),
            ("0.0000000011", 2),
            ("1e-2000000000", 1),
            ("9223372036.854775807", i64::MAX),
        ] {
            assert_eq!(NanoUsd::of_dollars(text), Some(NanoUsd(nano)), "{text}");
        }
        for text in [
            "",
            "-1",
            "-0",
            ".5",
            "1.2.3",
            "\"1\"",
            "null",
            "1e",
            "1e1.5",
            "NaN",
            "1e10",
            "1e2000000000",
            "9223372036.8547758071",
        ] {
            assert_eq!(NanoUsd::of_dollars(text), None, "{text}");
        }
    }

    #[test]
    fn a_fraction_is_rounded_up_once() {
        let prices = PriceSnapshot { input: Price(1), output: Price(1), ..PriceSnapshot::default() };
        assert_eq!(prices.cost(1, 0, 0, 1), NanoUsd(1));
    }
}
