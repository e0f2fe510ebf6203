//! Which legs a search has, what each weighs, and why.

use serde::Serialize;
use store::search::SearchSettings;

use crate::analyzer::{Language, Query};
use crate::coverage::Coverage;

/// How a search is carried out. A leg that weighs nothing is not asked at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// How much ranks by vectors count.
    pub vector_weight: f64,
    /// How much ranks by words count.
    pub lexical_weight: f64,
    /// What decided that.
    pub because: Because,
}

/// What decided on the legs of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The store's settings.
    #[default]
    Settings,
    /// The store's embedding model was not made for the language of the question, so words search alone.
    LanguageNotCovered,
    /// There is no word in the question that could be looked up, so vectors search alone.
    NothingIndexable,
}

/// A question as the lexical leg reads it.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) query: Query,
    /// The store's language; without one each passage is in its own.
    language: Option<Language>,
}

impl Question {
    pub(crate) fn read(text: &str, settings: &SearchSettings) -> Self {
        let language = settings.language.as_deref().map(Language::from_code);
        // Without a language of its own a store has chunks in any: the query is read in each that it may be in.
        let languages = language.map_or_else(|| Language::candidates(text), |language| vec![language]);
        Self { query: Query::parse(text, &languages), language }
    }

    /// Whether a passage has what the question demands and nothing that it excludes.
    pub(crate) fn accepts(&self, passage: &str) -> bool {
        let language = || self.language.unwrap_or_else(|| Language::detect(passage));
        !self.query.demands() || self.query.accepts(passage, language())
    }
}

impl Plan {
    pub(crate) fn of(text: &str, question: &Question, settings: &SearchSettings) -> Self {
        let (vector_weight, lexical_weight) = settings.tuning.weights();
        let set = Self { vector_weight, lexical_weight, because: Because::Settings };
        if lexical_weight <= 0.0 || vector_weight <= 0.0 {
            // Somebody wants it so.
            set
        } else if question.query.terms.is_empty() {
            Self { lexical_weight: 0.0, because: Because::NothingIndexable, ..set }
        } else if !Coverage::of(settings.tuning.languages.as_deref(), &settings.embedding.model).includes(text) {
            Self { vector_weight: 0.0, because: Because::LanguageNotCovered, ..set }
        } else {
            set
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{ConnectionId, EmbeddingRevisionId, ProviderType, SearchTuning, StoreId};
    use store::targets::UpstreamTarget;

    use super::*;

    fn plan(text: &str, tuning: SearchTuning) -> (f64, f64, Because) {
        let settings = SearchSettings {
            store: StoreId(1),
            embedding: UpstreamTarget {
                connection: ConnectionId(1),
                provider: ProviderType::CustomOpenAi,
                base_url: "http://models.example/v1".to_owned(),
                model: "all-MiniLM-L6-v2".to_owned(),
                credential_sealed: None,
            },
            revision: EmbeddingRevisionId(1),
            width: 384,
            language: None,
            content_revision: 1,
            tuning,
        };
        let plan = Plan::of(text, &Question::read(text, &settings), &settings);
        (plan.vector_weight, plan.lexical_weight, plan.because)
    }

    #[test]
    fn both_legs_search_unless_one_would_only_add_noise() {
        let set = SearchTuning::default;
        assert_eq!(plan("how often is it descaled", set()), (1.0, 1.0, Because::Settings));
        assert_eq!(plan("黑豹队的防守丢了多少分", set()), (0.0, 1.0, Because::LanguageNotCovered));
        assert_eq!(plan("!?", set()), (1.0, 0.0, Because::NothingIndexable));
        assert_eq!(plan("-sale", set()), (1.0, 0.0, Because::NothingIndexable));
    }

    #[test]
    fn what_a_store_says_holds() {
        let weighs =
            |vector_weight, lexical_weight| SearchTuning { vector_weight, lexical_weight, ..Default::default() };
        assert_eq!(plan("黑豹队", weighs(Some(0.5), None)), (0.0, 1.0, Because::LanguageNotCovered));
        assert_eq!(plan("黑豹队", weighs(None, Some(0.0))), (1.0, 0.0, Because::Settings));
        assert_eq!(plan("!?", weighs(Some(0.0), None)), (0.0, 1.0, Because::Settings));
        let all = SearchTuning { languages: Some(vec!["*".to_owned()]), ..Default::default() };
        assert_eq!(plan("黑豹队", all), (1.0, 1.0, Because::Settings));
    }
}
