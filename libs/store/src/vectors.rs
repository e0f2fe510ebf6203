//! Vectors: where a store has them, how they are compared with a query, and the tables of large stores.
//!
//! Workers write every vector to the table of its width. A store whose vectors can no longer be compared one by one in
//! [`SCAN_BUDGET`] gets a table of its own with an index ([`tables`]), and its vectors are taken there a batch at a time
//! while it is searched and written to. [`nearest`] reads both in one snapshot.

pub mod nearest;
pub mod tables;

use std::time::Duration;

use domain::{EmbeddingRevisionId, StoreId};

/// How long an exact comparison may take.
pub const SCAN_BUDGET: Duration = Duration::from_millis(30);

/// What comparing one vector costs: so much however wide it is (reading its row, and seeing whether its chunk is live),
const ROW_NANOSECONDS: i64 = 200;
/// and so much for each of its dimensions. Measured with a warm cache on one core of a server of 2024: 24,000 vectors of
/// 384 dimensions in 13 ms, 5,000 of 1,536 in 9 ms.
const DIMENSION_PICOSECONDS: i64 = 1_000;
/// Above this many dimensions a vector is stored apart from its row (as `ensure_vector_table` does it), and
const INLINE_DIMENSIONS: i32 = 1_900;
/// costs as many times more: 24,000 of 1,536 dimensions took 97 ms so.
const APART: i64 = 2;

/// Widest vectors that are kept in full precision: pgvector indexes up to 2,000 dimensions as `vector` and up to 4,000 as
/// `halfvec`.
const FULL_PRECISION_DIMENSIONS: i32 = 2_000;

/// How many vectors of a width can be compared with a query one by one within [`SCAN_BUDGET`].
#[must_use]
pub fn exact_rows(width: i32) -> i64 {
    let apart = if width > INLINE_DIMENSIONS { APART } else { 1 };
    let row = ROW_NANOSECONDS + (i64::from(width.max(1)) * DIMENSION_PICOSECONDS).div_euclid(1_000) * apart;
    i64::try_from(SCAN_BUDGET.as_nanos()).unwrap_or(i64::MAX).div_euclid(row)
}

/// Leaves those vectors `e` whose chunk can be found.
pub(crate) const LIVE: &str = "JOIN chunks c ON c.id = e.chunk_id
                               JOIN documents d ON d.id = c.document_id AND d.live_version = c.content_version";

/// The type of a vector column.
pub(crate) fn column_type(width: i32) -> &'static str {
    if width <= FULL_PRECISION_DIMENSIONS { "vector" } else { "halfvec" }
}

/// The table of a width.
pub(crate) fn shared_table(width: i32) -> String {
    format!("chunk_embeddings_{width}")
}

/// A store's own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnTable {
    /// The store.
    pub store: StoreId,
    /// Dimensions of its vectors.
    pub width: i32,
    /// The model they are of.
    pub revision: EmbeddingRevisionId,
    /// Whether its index is complete.
    pub indexed: bool,
    /// Vectors in it.
    pub vectors: i64,
}

impl OwnTable {
    pub(crate) fn name(&self) -> String {
        format!("chunk_embeddings_{}_s{}", self.width, self.store.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_width() {
        assert_eq!(exact_rows(384), 51_369);
        assert_eq!(exact_rows(1536), 17_281);
        assert!(exact_rows(1900) > 2 * exact_rows(2000) - 1_000);
        assert!(exact_rows(0) > 0 && exact_rows(4000) > 3_000);
    }
}
