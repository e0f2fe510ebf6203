//! What a document store says of how it is searched.

use serde::{Deserialize, Serialize};

use crate::retrieval::lenient;

/// A store's search settings, `document_stores.retrieval`. What is not there, or is nothing that this build can read,
/// counts as not set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SearchTuning {
    /// How much the ranks by vectors count; 0 leaves them out. See [`SearchTuning::weights`].
    #[serde(deserialize_with = "lenient")]
    pub vector_weight: Option<f64>,
    /// How much the ranks by words count; 0 leaves them out.
    #[serde(deserialize_with = "lenient")]
    pub lexical_weight: Option<f64>,
    /// Passages further from the query than this cosine distance, 0 to 2, are not found by vectors.
    #[serde(deserialize_with = "lenient")]
    pub max_distance: Option<f64>,
    /// The languages that the store's embedding model was made for, as ISO 639 codes, or `*` for all. Where they are not
    /// set they are those that the model is known for.
    #[serde(deserialize_with = "lenient")]
    pub languages: Option<Vec<String>>,
    /// Passages that follow each other in a document are shown as one of at most so many tokens; 0 leaves them apart.
    #[serde(deserialize_with = "lenient")]
    pub passage_tokens: Option<u32>,
}

impl SearchTuning {
    /// What a leg weighs where nothing is set.
    pub const DEFAULT_WEIGHT: f64 = 1.0;
    /// Tokens of passages put together where nothing is set.
    pub const DEFAULT_PASSAGE_TOKENS: u32 = 1200;
    const LARGEST_WEIGHT: f64 = 100.0;
    const MOST_LANGUAGES: usize = 200;
    const MOST_PASSAGE_TOKENS: u32 = 8000;

    /// How much vectors and words count, in this order.
    #[must_use]
    pub fn weights(&self) -> (f64, f64) {
        let weight = |set: Option<f64>| set.unwrap_or(Self::DEFAULT_WEIGHT);
        (weight(self.vector_weight), weight(self.lexical_weight))
    }

    /// The most tokens of passages that are put together.
    #[must_use]
    pub fn passage_tokens(&self) -> u32 {
        self.passage_tokens.unwrap_or(Self::DEFAULT_PASSAGE_TOKENS)
    }

    /// The member that is out of range, and what it has to be.
    #[must_use]
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let weighs = |weight: Option<f64>| weight.is_none_or(|weight| (0.0..=Self::LARGEST_WEIGHT).contains(&weight));
        for (member, weight) in [("vector_weight", self.vector_weight), ("lexical_weight", self.lexical_weight)] {
            if !weighs(weight) {
                return Some((member, "a number from 0 to 100"));
            }
        }
        if self.weights() == (0.0, 0.0) {
            return Some(("lexical_weight", "more than 0 where vector_weight is 0"));
        }
        if self.max_distance.is_some_and(|distance| !(0.0..=2.0).contains(&distance)) {
            return Some(("max_distance", "a number from 0 to 2"));
        }
        if self.languages.as_ref().is_some_and(|languages| !are_languages(languages)) {
            return Some(("languages", "a list of ISO 639 codes such as en, or of * for all"));
        }
        if self.passage_tokens() > Self::MOST_PASSAGE_TOKENS {
            return Some(("passage_tokens", "a whole number from 0 to 8000"));
        }
        None
    }
}

fn are_languages(languages: &[String]) -> bool {
    let is_code = |code: &String| matches!(code.len(), 2 | 3) && code.bytes().all(|byte| byte.is_ascii_lowercase());
    !languages.is_empty()
        && languages.len() <= SearchTuning::MOST_LANGUAGES
        && languages.iter().all(|code| code == "*" || is_code(code))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn read(json: Value) -> SearchTuning {
        from_value(json).unwrap()
    }

    #[test]
    fn what_cannot_be_read_counts_as_not_set_and_spoils_nothing_else() {
        assert_eq!(read(json!({})), SearchTuning::default());
        assert_eq!(read(json!({})).weights(), (1.0, 1.0));
        let later = read(json!({ "vector_weight": "learnt", "lexical_weight": 2, "languages": "en", "graph": 1 }));
        assert_eq!((later.weights(), &later.languages), ((1.0, 2.0), &None));
        let full = read(json!({ "vector_weight": 0.5, "max_distance": 0.7, "languages": ["en"], "passage_tokens": 0 }));
        assert_eq!((full.weights(), full.passage_tokens()), ((0.5, 1.0), 0));
        assert_eq!(read(serde_json::to_value(&full).unwrap()), full);
    }

    #[test]
    fn ranges_are_told() {
        for (settings, member) in [
            (json!({}), None),
            (json!({ "vector_weight": 0, "lexical_weight": 100, "max_distance": 2, "languages": ["en", "yue"] }), None),
            (json!({ "languages": ["*"], "passage_tokens": 8000 }), None),
            (json!({ "vector_weight": -1 }), Some("vector_weight")),
            (json!({ "lexical_weight": 101 }), Some("lexical_weight")),
            (json!({ "vector_weight": 0, "lexical_weight": 0 }), Some("lexical_weight")),
            (json!({ "max_distance": 2.1 }), Some("max_distance")),
            (json!({ "languages": [] }), Some("languages")),
            (json!({ "languages": ["English"] }), Some("languages")),
            (json!({ "passage_tokens": 8001 }), Some("passage_tokens")),
        ] {
            assert_eq!(read(settings.clone()).fault().map(|(member, _)| member), member, "{settings}");
        }
    }
}
