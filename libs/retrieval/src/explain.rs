//! How a passage was found, for people who wonder why.

use serde::Serialize;

use crate::search::Hit;

/// Which legs found a passage, and where.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// By words; absent where that leg did not find it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lexical: Option<ByWords>,
    /// By vectors; absent where that leg did not find it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<ByVector>,
}

/// How the lexical leg found a passage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ByWords {
    /// From 1.
    pub rank: u32,
    /// BM25; compares with nothing but the other passages of the same search.
    pub score: f64,
}

/// How the vector leg found a passage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ByVector {
    /// From 1.
    pub rank: u32,
    /// Cosine distance to the question, 0 to 2.
    pub distance: f64,
}

impl Explained {
    /// How a hit was found. Of neighbours that were put together it is the better one that is told of.
    #[must_use]
    pub fn of(hit: &Hit) -> Self {
        let both = |rank: Option<u32>, figure: Option<f64>| rank.zip(figure);
        Self {
            lexical: both(hit.lexical_rank, hit.lexical_score).map(|(rank, score)| ByWords { rank, score }),
            vector: both(hit.vector_rank, hit.distance).map(|(rank, distance)| ByVector { rank, distance }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;
    use crate::search::tests::hit;

    #[test]
    fn only_the_legs_that_found_a_passage_are_told() {
        let found = hit(1, 1, "a");
        assert_eq!(to_value(Explained::of(&found)).unwrap(), json!({ "lexical": { "rank": 1, "score": 1.0 } }));
        let found = Hit { lexical_rank: None, vector_rank: Some(3), distance: Some(0.25), ..found };
        assert_eq!(to_value(Explained::of(&found)).unwrap(), json!({ "vector": { "rank": 3, "distance": 0.25 } }));
    }
}
