//! How a claim of a switch ends before the switch does, and what becomes of vectors that nobody uses any more.

use std::time::Duration;

use domain::DocumentFailure;
use sqlx::AssertSqlSafe;

use super::{SwitchKey, SwitchPause};
use crate::queue::milliseconds;
use crate::{Store, StoreError};

/// Vectors that one statement removes at most.
const BATCH: i64 = 2_000;

impl Store {
    /// Ends a claim of a switch that is not at its end. Returns whether the claim still held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn pause_embedding_switch(&self, key: SwitchKey, pause: SwitchPause) -> Result<bool, StoreError> {
        let (failure, delay, max_age) = match pause {
            SwitchPause::Failed(failure) => (Some(failure), Duration::ZERO, Some(Duration::ZERO)),
            SwitchPause::Unavailable { failure, delay, max_age } => (Some(failure), delay, Some(max_age)),
            SwitchPause::OutOfBudget(delay) => (Some(DocumentFailure::Budget), delay, None),
            SwitchPause::PutBack(delay) => (None, delay, None),
        };
        // What may not go on for ever began with the first time in a row.
        let result = sqlx::query!(
            "UPDATE embedding_switches
                SET status = CASE WHEN coalesce(retrying_since, clock_timestamp())
                                       + $5::bigint * interval '1 millisecond' <= clock_timestamp()
                                  THEN 'failed' ELSE 'building' END,
                    run_at = clock_timestamp() + $6::bigint * interval '1 millisecond',
                    retries = CASE WHEN $5::bigint IS NULL THEN retries ELSE retries + 1 END,
                    retrying_since = CASE WHEN $5::bigint IS NULL THEN NULL
                                          ELSE coalesce(retrying_since, clock_timestamp()) END,
                    error_code = $3, error_text = $4, claim = NULL, claimed_by = NULL, lease_until = NULL,
                    updated_at = clock_timestamp()
              WHERE store_id = $1 AND claim = $2",
            key.store.0,
            key.claim,
            failure.map(DocumentFailure::code),
            failure.map(DocumentFailure::sentence),
            max_age.map(milliseconds),
            milliseconds(delay)
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }

    /// Removes some vectors that were retired `kept` ago or earlier by the database's clock. Any number of processes may
    /// do this at once. Returns `None` when there is nothing to remove, else how many went.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn remove_retired_embeddings(&self, kept: Duration) -> Result<Option<u64>, StoreError> {
        let mut transaction = self.begin().await?;
        // Locked until the end: whoever wants these vectors back waits, and then builds what is missing.
        let Some(entry) = sqlx::query!(
            "SELECT r.store_id, r.embedding_revision_id, r.width FROM retired_embeddings r
              WHERE r.retired_at <= clock_timestamp() - $1::bigint * interval '1 millisecond'
                AND NOT EXISTS (SELECT FROM document_stores s
                                 WHERE s.id = r.store_id AND s.embedding_revision_id = r.embedding_revision_id)
                AND NOT EXISTS (SELECT FROM embedding_switches w
                                 WHERE w.store_id = r.store_id AND w.embedding_revision_id = r.embedding_revision_id)
              ORDER BY r.retired_at LIMIT 1 FOR UPDATE OF r SKIP LOCKED",
            milliseconds(kept)
        )
        .fetch_optional(&mut transaction)
        .await?
        else {
            transaction.rollback().await?;
            return Ok(None);
        };
        let statement = format!(
            "DELETE FROM chunk_embeddings_{width} WHERE (chunk_id, embedding_revision_id) IN (
                 SELECT chunk_id, embedding_revision_id FROM chunk_embeddings_{width}
                  WHERE store_id = $1 AND embedding_revision_id = $2 LIMIT $3)",
            width = entry.width
        );
        let removed = sqlx::query(AssertSqlSafe(statement))
            .bind(entry.store_id)
            .bind(entry.embedding_revision_id)
            .bind(BATCH)
            .execute(&mut transaction)
            .await?
            .rows_affected();
        if removed < BATCH.unsigned_abs() {
            sqlx::query!(
                "DELETE FROM retired_embeddings WHERE store_id = $1 AND embedding_revision_id = $2",
                entry.store_id,
                entry.embedding_revision_id
            )
            .execute(&mut transaction)
            .await?;
        }
        transaction.commit().await?;
        Ok(Some(removed))
    }
}
