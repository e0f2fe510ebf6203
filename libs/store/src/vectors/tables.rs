//! The tables that large stores have for themselves: made, filled, indexed, swept and dropped.
//!
//! Every step is one transaction that begins by taking the table's row in `vector_tables`, and does nothing where another
//! process has it. A step that is cut off anywhere leaves nothing of itself, and any process goes on with the next.

use std::time::Duration;

use domain::{ChunkId, EmbeddingRevisionId, StoreId};
use sqlx::AssertSqlSafe;

use super::{LIVE, OwnTable, shared_table};
use crate::bounded::Transaction;
use crate::{Store, StoreError};

/// A build that takes longer is given up and begun anew: far more than the largest store needs.
const BUILD_PATIENCE: Duration = Duration::from_secs(6 * 3600);
/// Nobody reads a table that is dropped, but one who is at it still may hold it for a moment.
const DROP_PATIENCE_MS: &str = "200";

/// A store, as far as its vectors go.
#[derive(Clone, Debug)]
pub struct VectorStore {
    /// Which one.
    pub store: StoreId,
    /// Dimensions of its vectors.
    pub width: i32,
    /// The model they are of.
    pub revision: EmbeddingRevisionId,
    /// Changes with every document that becomes live or goes.
    pub content_revision: i64,
    /// The table it has for the vectors that are live in it.
    pub own: Option<OwnTable>,
    /// Whether that may have vectors of chunks that are gone.
    pub sweep_due: bool,
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: another process is at this table, or it is gone.
    NotOurs,
    /// It took, moved or removed so many vectors.
    Done(i64),
}

/// What a sweep has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Vectors removed.
    pub removed: i64,
    /// The last chunk that was looked at; `None` at the end of the table.
    pub looked_at: Option<ChunkId>,
}

impl Store {
    /// All stores with their tables, by id. A table is due to be swept when its store has changed since, and `rest` has
    /// passed.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_vector_stores(&self, rest: Duration) -> Result<Vec<VectorStore>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.id, s.width, s.embedding_revision_id, s.content_revision, v.indexed AS "indexed?",
                      v.vectors AS "vectors?",
                      coalesce(v.swept_revision <> s.content_revision
                               AND v.swept_at < clock_timestamp() - $1::bigint * interval '1 millisecond', false)
                          AS "sweep_due!"
                 FROM document_stores s
                      LEFT JOIN vector_tables v ON v.store_id = s.id AND v.width = s.width
                           AND v.embedding_revision_id = s.embedding_revision_id
                ORDER BY s.id"#,
            i64::try_from(rest.as_millis()).unwrap_or(i64::MAX)
        )
        .fetch_all(self.pool())
        .await?;
        let stores = rows.into_iter().map(|row| {
            let (store, revision) = (StoreId(row.id), EmbeddingRevisionId(row.embedding_revision_id));
            let own = row.indexed.zip(row.vectors);
            VectorStore {
                store,
                width: row.width,
                revision,
                content_revision: row.content_revision,
                own: own.map(|(indexed, vectors)| OwnTable { store, width: row.width, revision, indexed, vectors }),
                sweep_due: row.sweep_due,
            }
        });
        Ok(stores.collect())
    }

    /// Tables that no search reads: of stores that are gone or have another model by now. Store and width.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_obsolete_vector_tables(&self) -> Result<Vec<(StoreId, i32)>, StoreError> {
        let rows = sqlx::query!(
            "SELECT v.store_id, v.width FROM vector_tables v
              WHERE NOT EXISTS (SELECT FROM document_stores s
                                 WHERE s.id = v.store_id AND s.width = v.width
                                   AND s.embedding_revision_id = v.embedding_revision_id)
              ORDER BY v.store_id, v.width"
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (StoreId(row.store_id), row.width)).collect())
    }

    /// How many vectors a store has in the table of its width, counted up to a limit.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn count_shared_vectors(&self, store: StoreId, width: i32, limit: i64) -> Result<i64, StoreError> {
        let statement =
            format!("SELECT count(*) FROM (SELECT FROM {} WHERE store_id = $1 LIMIT $2) counted", shared_table(width));
        Ok(sqlx::query_scalar(AssertSqlSafe(statement)).bind(store.0).bind(limit).fetch_one(self.pool()).await?)
    }

    /// Makes a store's own table. Returns whether it was made now.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn open_vector_table(&self, store: StoreId) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(r#"SELECT open_vector_table_v1($1) AS "made!""#, store.0).fetch_one(self.pool()).await?)
    }

    /// Takes up to `batch` live vectors of a store from the table of its width to its own, in one statement: whoever
    /// searches sees each of them in one of the two. Those that somebody is deleting are left for the next time, and
    /// those of a version that is being written stay where its writer looks for them.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn move_vectors(&self, table: &OwnTable, batch: i64) -> Result<Step, StoreError> {
        let Some(mut transaction) = self.take_vector_table(table).await? else { return Ok(Step::NotOurs) };
        let statement = format!(
            "WITH taken AS MATERIALIZED (
                 SELECT e.chunk_id FROM {shared} e {LIVE}
                  WHERE e.store_id = $1 AND e.embedding_revision_id = $2
                  LIMIT $3 FOR UPDATE OF e SKIP LOCKED
             ), gone AS (
                 DELETE FROM {shared} e USING taken
                  WHERE e.chunk_id = taken.chunk_id AND e.store_id = $1 AND e.embedding_revision_id = $2
                 RETURNING e.chunk_id, e.store_id, e.embedding_revision_id, e.embedding
             ), put AS (
                 -- A model that was left and is taken up again may have been here before.
                 INSERT INTO {own} (chunk_id, store_id, embedding_revision_id, embedding)
                 SELECT chunk_id, store_id, embedding_revision_id, embedding FROM gone
                 ON CONFLICT (chunk_id) DO NOTHING RETURNING chunk_id
             ), counted AS (
                 UPDATE vector_tables SET vectors = vectors + (SELECT count(*) FROM put)
                  WHERE store_id = $1 AND width = $4
             )
             SELECT count(*) FROM gone",
            shared = shared_table(table.width),
            own = table.name()
        );
        let moved: i64 = sqlx::query_scalar(AssertSqlSafe(statement))
            .bind(table.store.0)
            .bind(table.revision.0)
            .bind(batch)
            .bind(table.width)
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(Step::Done(moved))
    }

    /// Builds the index of a store's own table. Nobody waits for that: the table is only read meanwhile. It may take
    /// minutes, with at most `memory_mib` for the graph; beyond that it goes on more slowly.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn index_vector_table(&self, table: &OwnTable, memory_mib: u32) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        // The server looks whether somebody still waits, since a build may outlive its worker otherwise. Helpers of a
        // build share memory that containers have little of.
        sqlx::query!(
            "SELECT set_config('statement_timeout', '0', true) AS timeout,
                    set_config('maintenance_work_mem', $1, true) AS memory,
                    set_config('max_parallel_maintenance_workers', '0', true) AS helpers,
                    set_config('client_connection_check_interval', '5s', true) AS look",
            format!("{memory_mib}MB")
        )
        .fetch_one(&mut transaction)
        .await?;
        transaction.beyond(BUILD_PATIENCE);
        let built =
            sqlx::query_scalar!(r#"SELECT index_vector_table_v1($1, $2) AS "built!""#, table.store.0, table.width)
                .fetch_one(&mut transaction)
                .await?;
        transaction.commit().await?;
        Ok(built)
    }

    /// Removes vectors whose chunk is gone, among the `window` after a chunk. At the end of the table it is noted as
    /// swept at `content_revision`.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn sweep_vectors(
        &self,
        table: &OwnTable,
        content_revision: i64,
        after: ChunkId,
        window: i64,
    ) -> Result<Option<Swept>, StoreError> {
        let Some(mut transaction) = self.take_vector_table(table).await? else { return Ok(None) };
        let statement = format!(
            "WITH looked_at AS MATERIALIZED (
                 SELECT chunk_id FROM {own} WHERE chunk_id > $1 ORDER BY chunk_id LIMIT $2
             ), gone AS (
                 DELETE FROM {own} e USING looked_at l
                  WHERE e.chunk_id = l.chunk_id AND NOT EXISTS (SELECT FROM chunks c WHERE c.id = l.chunk_id)
                 RETURNING e.chunk_id
             ), counted AS (
                 UPDATE vector_tables
                    SET vectors = vectors - (SELECT count(*) FROM gone),
                        swept_revision = CASE WHEN EXISTS (SELECT FROM looked_at) THEN swept_revision ELSE $5 END,
                        swept_at = clock_timestamp()
                  WHERE store_id = $3 AND width = $4
             )
             SELECT (SELECT max(chunk_id) FROM looked_at), (SELECT count(*) FROM gone)",
            own = table.name()
        );
        let (looked_at, removed): (Option<i64>, i64) = sqlx::query_as(AssertSqlSafe(statement))
            .bind(after.0)
            .bind(window)
            .bind(table.store.0)
            .bind(table.width)
            .bind(content_revision)
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(Some(Swept { removed, looked_at: looked_at.map(ChunkId) }))
    }

    /// Drops a table that no search reads. Returns whether it did.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] while somebody is still at it; otherwise as for any statement.
    pub async fn drop_vector_table(&self, store: StoreId, width: i32) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query!("SELECT set_config('lock_timeout', $1, true) AS timeout", DROP_PATIENCE_MS)
            .fetch_one(&mut transaction)
            .await?;
        let dropped = sqlx::query_scalar!(r#"SELECT drop_vector_table_v1($1, $2) AS "dropped!""#, store.0, width)
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(dropped)
    }

    /// A transaction that holds a table's row, unless another one does or the table is gone.
    async fn take_vector_table(&self, table: &OwnTable) -> Result<Option<Transaction>, StoreError> {
        let mut transaction = self.begin().await?;
        let taken = sqlx::query_scalar!(
            r#"SELECT true AS "taken!" FROM vector_tables
                WHERE store_id = $1 AND width = $2 AND embedding_revision_id = $3 FOR UPDATE SKIP LOCKED"#,
            table.store.0,
            table.width,
            table.revision.0
        )
        .fetch_optional(&mut transaction)
        .await?;
        if taken.is_none() {
            transaction.rollback().await?;
            return Ok(None);
        }
        Ok(Some(transaction))
    }
}
