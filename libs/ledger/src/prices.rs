//! Which price a model has.

use domain::{Price, PriceSnapshot, ProviderType};
use store::prices::ModelPrice;

/// Where a price comes from, as the log says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceSource {
    /// The table that ships with the product.
    Builtin,
    /// Somebody set it.
    User,
    /// There is none, and the provider has told what the call has cost.
    Reported,
    /// There is none: the cost is 0 and the call counts as unpriced.
    None,
}

impl PriceSource {
    /// The name in the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::User => "user",
            Self::Reported => "reported",
            Self::None => "none",
        }
    }
}

/// All prices at one moment.
#[derive(Clone, Debug, Default)]
pub struct PriceBook {
    prices: Vec<ModelPrice>,
}

impl PriceBook {
    /// A book of these prices.
    #[must_use]
    pub fn new(prices: Vec<ModelPrice>) -> Self {
        Self { prices }
    }

    /// The price of a model: of the exact name, else of the pattern with the longest literal prefix before its `*`.
    #[must_use]
    pub fn price(&self, provider: ProviderType, model: &str) -> (PriceSnapshot, PriceSource) {
        let of_provider = || self.prices.iter().filter(|price| price.provider_type == provider.as_str());
        let exact = of_provider().find(|price| price.model_pattern == model);
        let found = exact.or_else(|| {
            of_provider()
                .filter_map(|price| Some((price, price.model_pattern.strip_suffix('*')?)))
                .filter(|(_, prefix)| model.starts_with(prefix))
                .max_by_key(|(_, prefix)| prefix.len())
                .map(|(price, _)| price)
        });
        let Some(price) = found else { return (PriceSnapshot::default(), PriceSource::None) };
        let input = Price(price.input);
        let snapshot = PriceSnapshot {
            input,
            output: Price(price.output),
            cache_read: price.cache_read.map_or(input, Price),
            cache_write: price.cache_write.map_or(input, Price),
        };
        (snapshot, if price.builtin { PriceSource::Builtin } else { PriceSource::User })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(pattern: &str, input: i64) -> ModelPrice {
        ModelPrice {
            provider_type: "openai".into(),
            model_pattern: pattern.into(),
            input,
            output: 2 * input,
            cache_read: None,
            cache_write: Some(input + 1),
            builtin: pattern.contains('*'),
        }
    }

    #[test]
    fn the_exact_name_wins_then_the_longest_prefix() {
        let book = PriceBook::new(vec![price("gpt-*", 1), price("gpt-4o-*", 2), price("gpt-4o-mini", 3)]);
        let input = |model: &str| book.price(ProviderType::OpenAi, model).0.input;
        assert_eq!(input("gpt-4o-mini"), Price(3));
        assert_eq!(input("gpt-4o-mini-2024"), Price(2));
        assert_eq!(input("gpt-5"), Price(1));
        assert_eq!(book.price(ProviderType::OpenAi, "o3").1, PriceSource::None);
        assert_eq!(book.price(ProviderType::CustomOpenAi, "gpt-5").1, PriceSource::None);
    }

    #[test]
    fn a_missing_cache_price_is_the_input_price() {
        let book = PriceBook::new(vec![price("m", 10)]);
        let (snapshot, source) = book.price(ProviderType::OpenAi, "m");
        assert_eq!((snapshot.cache_read, snapshot.cache_write), (Price(10), Price(11)));
        assert_eq!(source, PriceSource::User);
    }
}
