//! Changes of how a store is searched.

use domain::SearchTuning;
use serde::Deserialize;

use crate::body::nullable;
use crate::error::ApiError;

/// Search settings; what is left out stays, and `null` is as if it had never been set.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TuningChanges {
    #[serde(deserialize_with = "nullable")]
    vector_weight: Option<Option<f64>>,
    #[serde(deserialize_with = "nullable")]
    lexical_weight: Option<Option<f64>>,
    #[serde(deserialize_with = "nullable")]
    max_distance: Option<Option<f64>>,
    #[serde(deserialize_with = "nullable")]
    languages: Option<Option<Vec<String>>>,
    #[serde(deserialize_with = "nullable")]
    passage_tokens: Option<Option<u32>>,
}

impl TuningChanges {
    /// The settings after the changes, checked.
    pub(super) fn apply(self, now: SearchTuning) -> Result<SearchTuning, ApiError> {
        let tuning = SearchTuning {
            vector_weight: self.vector_weight.unwrap_or(now.vector_weight),
            lexical_weight: self.lexical_weight.unwrap_or(now.lexical_weight),
            max_distance: self.max_distance.unwrap_or(now.max_distance),
            languages: self.languages.unwrap_or(now.languages),
            passage_tokens: self.passage_tokens.unwrap_or(now.passage_tokens),
        };
        match tuning.fault() {
            Some((member, must)) => Err(ApiError::invalid(format!("retrieval.{member}: expected {must}"))),
            None => Ok(tuning),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn apply(changes: Value, now: &SearchTuning) -> Result<SearchTuning, String> {
        let changes: TuningChanges = serde_json::from_value(changes).map_err(|error| error.to_string())?;
        changes.apply(now.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_stays_and_null_takes_back() {
        let now = SearchTuning { vector_weight: Some(0.5), max_distance: Some(0.6), ..SearchTuning::default() };
        let changed = apply(json!({ "lexical_weight": 2, "max_distance": null }), &now).unwrap();
        assert_eq!((changed.weights(), changed.max_distance), ((0.5, 2.0), None));
        assert_eq!(apply(json!({}), &now).unwrap(), now);
    }

    #[test]
    fn a_wrong_member_is_named() {
        let now = SearchTuning::default();
        let told = apply(json!({ "max_distance": 3 }), &now).unwrap_err();
        assert_eq!(told, "retrieval.max_distance: expected a number from 0 to 2");
        assert!(apply(json!({ "weight": 3 }), &now).unwrap_err().contains("unknown field `weight`"));
    }
}
