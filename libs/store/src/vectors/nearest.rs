//! The vectors nearest to a query.

use std::collections::HashSet;
use std::time::Duration;

use domain::{ChunkId, EmbeddingRevisionId, StoreId};
use sqlx::AssertSqlSafe;

use super::{LIVE, OwnTable, column_type, exact_rows, shared_table};
use crate::bounded::Transaction;
use crate::filters::Within;
use crate::schema::is_undefined_table;
use crate::search::{SearchSettings, VectorHit};
use crate::{Store, StoreError};

/// Candidates the index keeps in view, where nothing narrows the search. pgvector's own default, 40, is for ten hits.
const LEAST_EF_SEARCH: i64 = 200;
/// Beyond this the index scan goes on by itself where it has to.
const MOST_EF_SEARCH: i64 = 400;
/// The index answers in an order that is almost that of the distances: what it says is asked for twice over and sorted.
const OVER_FETCH: i64 = 2;
/// Tuples the index scan may look at before it gives up; pgvector's default.
const LEAST_SCAN: i64 = 20_000;
const MOST_SCAN: i64 = 500_000;
/// A vector that is found through its document costs this many times one that is read in passing.
const SCATTERED: i64 = 4;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Nearest<'a> {
    /// Where.
    pub settings: &'a SearchSettings,
    /// What to compare with.
    pub vector: &'a [f32],
    /// How many.
    pub limit: i64,
    /// Only in these documents, if only in some.
    pub within: Option<&'a Within>,
    /// When the database ends the search.
    pub deadline: Duration,
    /// Vectors that are compared one by one at most, if it is not what [`exact_rows`] says.
    pub exact_rows: Option<i64>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Neighbours {
    /// Nearest first.
    pub hits: Vec<VectorHit>,
    /// How they were found.
    pub plan: VectorPlan,
}

/// How vectors are compared with a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorPlan {
    /// All of them, one by one.
    #[default]
    Exact,
    /// Through the index of the store's own table; vectors that have not come there yet one by one.
    Index {
        /// Candidates the index keeps in view.
        ef_search: i64,
        /// Tuples it looks at before it gives up.
        max_scan_tuples: i64,
    },
}

impl VectorPlan {
    /// Whether nothing nearer can have been missed.
    #[must_use]
    pub fn is_exhaustive(self) -> bool {
        self == Self::Exact
    }

    fn choose(own: Option<&OwnTable>, request: &Nearest<'_>) -> Self {
        let most = request.exact_rows.unwrap_or_else(|| exact_rows(request.settings.width));
        let Some(own) = own.filter(|own| own.indexed && own.vectors > most) else { return Self::Exact };
        let left = match request.within {
            Some(within) if within.chunks.saturating_mul(SCATTERED) <= most => return Self::Exact,
            Some(within) => within.chunks.clamp(1, own.vectors),
            None => own.vectors,
        };
        // How many tuples are to be seen for one that is left.
        let of_one = |wanted: i64| wanted.saturating_mul(own.vectors).div_euclid(left);
        let wanted = request.limit.saturating_mul(OVER_FETCH);
        Self::Index {
            ef_search: of_one(wanted).clamp(LEAST_EF_SEARCH, MOST_EF_SEARCH),
            max_scan_tuples: of_one(wanted.saturating_mul(8)).clamp(LEAST_SCAN, MOST_SCAN),
        }
    }
}

impl Store {
    /// The live chunks nearest to a vector, of one snapshot of both tables that a store's vectors may be in.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the store has another model by now, [`StoreError::Timeout`] past the deadline;
    /// otherwise as for any statement.
    pub async fn nearest_chunks(&self, request: &Nearest<'_>) -> Result<Neighbours, StoreError> {
        match self.nearest_once(request).await {
            // Its own table was dropped between two statements: look again where it is now.
            Err(StoreError::Unexpected { source }) if is_undefined_table(&source) => self.nearest_once(request).await,
            answer => answer,
        }
    }

    async fn nearest_once(&self, request: &Nearest<'_>) -> Result<Neighbours, StoreError> {
        let mut transaction = self.begin_reading().await?;
        let own = own_table(&mut transaction, request).await?;
        transaction.beyond(request.deadline);
        let mut plan = VectorPlan::choose(own.as_ref(), request);
        if let VectorPlan::Index { ef_search, max_scan_tuples } = plan
            && !by_index(&mut transaction, ef_search, max_scan_tuples).await?
        {
            plan = VectorPlan::Exact;
        }
        let within = request.within.map(Within::ids);
        let statement = statement(request.settings.width, own.as_ref(), plan, within.is_some());
        let mut query = sqlx::query_as(AssertSqlSafe(statement))
            .bind(request.vector)
            .bind(request.settings.store.0)
            .bind(request.settings.revision.0)
            .bind(request.limit);
        if let Some(within) = within {
            query = query.bind(within);
        }
        let rows: Vec<(i64, f64)> = query.fetch_all(&mut transaction).await?;
        transaction.commit().await?;
        // A vector is in one of the tables; one of a model that was left and taken up again may be in both for a while.
        let mut seen = HashSet::new();
        let hits = rows.into_iter().filter(|(chunk, _)| seen.insert(*chunk));
        let hits = hits.map(|(chunk, distance)| VectorHit { chunk: ChunkId(chunk), distance }).collect();
        Ok(Neighbours { hits, plan })
    }
}

/// The store's own table, if it has one for the model it is searched with; bounds the time of what follows.
async fn own_table(transaction: &mut Transaction, request: &Nearest<'_>) -> Result<Option<OwnTable>, StoreError> {
    let settings = request.settings;
    // The vector is read so that the extension is loaded: the session knows its settings then, and refuses wrong ones.
    let row = sqlx::query!(
        r#"SELECT set_config('statement_timeout', $4, true) AS timeout,
                  set_config('plan_cache_mode', 'force_custom_plan', true) AS mode,
                  '[0]'::vector IS NULL AS loaded,
                  EXISTS (SELECT FROM document_stores
                           WHERE id = $1 AND width = $2 AND embedding_revision_id = $3) AS "is_live!",
                  v.indexed AS "indexed?", v.vectors AS "vectors?"
             FROM (SELECT) one
                  LEFT JOIN vector_tables v ON v.store_id = $1 AND v.width = $2 AND v.embedding_revision_id = $3"#,
        settings.store.0,
        settings.width,
        settings.revision.0,
        i64::try_from(request.deadline.as_millis()).unwrap_or(i64::MAX).to_string()
    )
    .fetch_one(transaction)
    .await?;
    if !row.is_live {
        return Err(StoreError::Conflict);
    }
    Ok(row.indexed.zip(row.vectors).map(|(indexed, vectors)| OwnTable {
        store: StoreId(settings.store.0),
        width: settings.width,
        revision: EmbeddingRevisionId(settings.revision.0),
        indexed,
        vectors,
    }))
}

/// Has the rest of the transaction go through the index. Returns whether the server has taken that in.
async fn by_index(transaction: &mut Transaction, ef_search: i64, max_scan_tuples: i64) -> Result<bool, StoreError> {
    let row = sqlx::query!(
        r#"SELECT set_config('hnsw.ef_search', $1, true) AS ef,
                  set_config('hnsw.max_scan_tuples', $2, true) AS most,
                  set_config('enable_seqscan', 'off', true) AS scan,
                  set_config('enable_bitmapscan', 'off', true) AS bitmap,
                  set_config('enable_hashjoin', 'off', true) AS hash,
                  set_config('enable_mergejoin', 'off', true) AS merge,
                  set_config('enable_sort', 'off', true) AS sort,
                  set_config('hnsw.iterative_scan', 'relaxed_order', true) AS "iterative!""#,
        ef_search.to_string(),
        max_scan_tuples.to_string()
    )
    .fetch_one(&mut *transaction)
    .await?;
    let kept = sqlx::query_scalar!(r#"SELECT current_setting('hnsw.iterative_scan') AS "kept!""#)
        .fetch_one(transaction)
        .await?;
    Ok(row.iterative == kept && kept == "relaxed_order")
}

/// $1 is the query, $2 the store, $3 the model, $4 the limit, $5 the documents of a filter.
fn statement(width: i32, own: Option<&OwnTable>, plan: VectorPlan, is_filtered: bool) -> String {
    let kind = column_type(width);
    let distance = format!("(e.embedding <=> $1::real[]::{kind}({width}))");
    let only = "e.store_id = $2 AND e.embedding_revision_id = $3";
    let filter = if is_filtered { " AND d.id = ANY ($5::bigint[])" } else { "" };
    // The added zero keeps the planner from an index that would answer approximately.
    let exactly = |table: &str| {
        format!(
            "(SELECT e.chunk_id, {distance}::float8 AS distance FROM {table} e {LIVE} WHERE {only}{filter}
               ORDER BY {distance} + 0, e.chunk_id LIMIT $4)"
        )
    };
    let shared = exactly(&shared_table(width));
    let own = match (own, plan) {
        (None, _) => None,
        (Some(own), VectorPlan::Exact) => Some(exactly(&own.name())),
        (Some(own), VectorPlan::Index { .. }) => Some(format!(
            "(SELECT e.chunk_id, {distance}::float8 AS distance FROM {} e {LIVE} WHERE {only}{filter}
               ORDER BY {distance} LIMIT $4 * {OVER_FETCH})",
            own.name()
        )),
    };
    let all = own.map_or_else(|| shared.clone(), |own| format!("{own} UNION ALL {shared}"));
    format!("SELECT chunk_id, distance FROM ({all}) found ORDER BY distance, chunk_id LIMIT $4")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::UpstreamTarget;

    fn plan(own: Option<(bool, i64)>, within: Option<i64>) -> VectorPlan {
        let settings = SearchSettings {
            store: StoreId(1),
            embedding: UpstreamTarget::new(1, "custom_openai", String::new(), String::new(), None).unwrap(),
            revision: EmbeddingRevisionId(1),
            width: 384,
            language: None,
            content_revision: 0,
            tuning: domain::SearchTuning::default(),
        };
        let own = own.map(|(indexed, vectors)| OwnTable {
            store: StoreId(1),
            width: 384,
            revision: EmbeddingRevisionId(1),
            indexed,
            vectors,
        });
        let within = within.map(|chunks| Within { documents: Vec::new(), chunks });
        let request = Nearest {
            settings: &settings,
            vector: &[],
            limit: 100,
            within: within.as_ref(),
            deadline: Duration::ZERO,
            exact_rows: None,
        };
        VectorPlan::choose(own.as_ref(), &request)
    }

    #[test]
    fn the_index_is_used_where_exact_comparison_takes_too_long() {
        assert_eq!(plan(None, None), VectorPlan::Exact);
        assert_eq!(plan(Some((false, 1_000_000)), None), VectorPlan::Exact, "there is none yet");
        assert_eq!(plan(Some((true, 50_000)), None), VectorPlan::Exact);
        let index = |ef_search, max_scan_tuples| VectorPlan::Index { ef_search, max_scan_tuples };
        assert_eq!(plan(Some((true, 60_000)), None), index(200, 20_000));
        assert_eq!(plan(Some((true, 1_000_000)), Some(10_000)), VectorPlan::Exact, "the filter leaves few");
        assert_eq!(plan(Some((true, 1_000_000)), Some(20_000)), index(400, 80_000));
        assert_eq!(plan(Some((true, 1_000_000)), Some(900_000)), index(222, 20_000));
    }
}
