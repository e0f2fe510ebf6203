//! What a project says of how its documents are searched.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::ConnectionId;

/// Which turns of a chat are searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetrieveWhen {
    /// All that say anything.
    Always,
    /// Not for results of tools and turns of less than four words.
    #[default]
    Auto,
    /// None.
    Never,
}

/// That what a search found is put into a better order by a model that does nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RerankSettings {
    /// The model.
    pub connection_id: ConnectionId,
    /// How many passages it is shown.
    #[serde(default = "default_candidates")]
    pub candidates: u32,
}

impl RerankSettings {
    /// Passages shown where nothing else is said.
    pub const DEFAULT_CANDIDATES: u32 = 15;
    /// The most passages that can be shown.
    pub const MOST_CANDIDATES: u32 = 100;
}

fn default_candidates() -> u32 {
    RerankSettings::DEFAULT_CANDIDATES
}

/// A project's retrieval settings, `projects.retrieval`. What is not there, or is nothing that this build can read,
/// counts as not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetrievalSettings {
    /// Which turns are searched for.
    #[serde(deserialize_with = "lenient")]
    pub when: RetrieveWhen,
    /// How many passages are looked for.
    #[serde(deserialize_with = "lenient")]
    pub top_k: Option<u32>,
    /// Whether a conversation of several turns is put into one question, by the model that answers, before the search.
    #[serde(deserialize_with = "lenient")]
    pub condense: bool,
    /// Who orders what was found, if not the search alone.
    #[serde(deserialize_with = "lenient")]
    pub rerank: Option<RerankSettings>,
}

impl RetrievalSettings {
    /// The most passages that can be looked for.
    pub const MOST_PASSAGES: u32 = 100;

    /// The member that is out of range, and what it has to be.
    #[must_use]
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.top_k.is_some_and(|top_k| !(1..=Self::MOST_PASSAGES).contains(&top_k)) {
            return Some(("top_k", "a whole number from 1 to 100"));
        }
        let shown = self.rerank.map_or(1, |rerank| rerank.candidates);
        if !(1..=RerankSettings::MOST_CANDIDATES).contains(&shown) {
            return Some(("rerank.candidates", "a whole number from 1 to 100"));
        }
        None
    }
}

/// A value, or the default for one that cannot be read.
pub(crate) fn lenient<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Read<T> {
        Known(T),
        Unknown(IgnoredAny),
    }
    Ok(match Read::deserialize(deserializer)? {
        Read::Known(value) => value,
        Read::Unknown(IgnoredAny) => T::default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn what_cannot_be_read_counts_as_not_set_and_spoils_nothing_else() {
        let read = |json: Value| from_value::<RetrievalSettings>(json).unwrap();
        assert_eq!(read(json!({})), RetrievalSettings::default());
        let of_a_later_build = json!({ "when": "never", "top_k": "many", "rerank": { "by": "magic" }, "graph": true });
        assert_eq!(read(of_a_later_build), RetrievalSettings { when: RetrieveWhen::Never, ..Default::default() });
        let rerank = read(json!({ "when": 7, "condense": true, "rerank": { "connection_id": 3 } }));
        let expected = RerankSettings { connection_id: ConnectionId(3), candidates: 15 };
        assert_eq!((rerank.when, rerank.condense, rerank.rerank), (RetrieveWhen::Auto, true, Some(expected)));
        assert_eq!(read(serde_json::to_value(rerank).unwrap()), rerank);
    }

    #[test]
    fn ranges_are_told() {
        let rerank = |candidates| Some(RerankSettings { connection_id: ConnectionId(1), candidates });
        let fault =
            |top_k, rerank| RetrievalSettings { top_k, rerank, ..Default::default() }.fault().map(|(member, _)| member);
        for (settings, member) in [
            (fault(None, None), None),
            (fault(Some(100), rerank(100)), None),
            (fault(Some(0), None), Some("top_k")),
            (fault(Some(101), None), Some("top_k")),
            (fault(None, rerank(0)), Some("rerank.candidates")),
            (fault(Some(1), rerank(101)), Some("rerank.candidates")),
        ] {
            assert_eq!(settings, member);
        }
    }
}
