//! A store gets another embedding model while it is searched.
//!
//! The vectors of the new model are built beside the old ones by whichever worker claims the switch; searches use the old
//! ones, all of them, until every live chunk has a new one. Then one statement changes the store over, and the old
//! vectors are retired: kept for a while for searches that began with them, and removed in batches.
//!
//! Documents that are uploaded meanwhile get vectors of the old model first, as searches need them, and of the new one
//! by the switch. A document that was begun before the change and ends after it does not become live with vectors of the
//! old model: [`Store::finish_document`] looks at the store.

mod build;
mod ends;

use std::time::Duration;

use domain::{ConnectionId, DocumentFailure, DocumentId, EmbeddingRevisionId, ProjectId, StoreId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::audit::AuditEntry;
use crate::ingest::IngestSettings;
use crate::queue::milliseconds;
use crate::targets::UpstreamTarget;
use crate::{Reach, Store, StoreError};

/// What a store is to be embedded with from now on.
#[derive(Clone, Debug)]
pub struct NewEmbedding {
    /// The connection.
    pub connection: ConnectionId,
    /// The address its width was probed at.
    pub base_url: String,
    /// The model's name.
    pub model_name: String,
    /// Dimensions of its vectors.
    pub width: i32,
}

/// What fences the writes of one claim of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchKey {
    /// The store.
    pub store: StoreId,
    /// Another one with every claim.
    pub claim: Uuid,
}

/// A claimed switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// What fences its writes.
    pub key: SwitchKey,
    /// Whom it embeds with, who pays, and how the store embeds.
    pub settings: IngestSettings,
    /// Passing errors in a row that it has waited out.
    pub retries: i32,
}

/// A chunk that has no vector of the new model.
#[derive(Clone, Debug)]
pub struct BareChunk {
    /// Which chunk.
    pub id: i64,
    /// The document it is of.
    pub document: DocumentId,
    /// The document's title.
    pub title: Option<String>,
    /// Headings above it, joined with ` > `.
    pub heading_path: String,
    /// Its text.
    pub content: String,
    /// SHA-256 of what was embedded for it.
    pub content_hash: Vec<u8>,
}

/// How far a switch is, for people.
#[derive(Clone, Debug)]
pub struct SwitchState {
    /// What the store is to be embedded with.
    pub connection: ConnectionId,
    /// Dimensions of its vectors.
    pub width: i32,
    /// `building` or `failed`.
    pub status: String,
    /// When it goes on, if it waits.
    pub run_at: OffsetDateTime,
    /// Whether a worker is at it.
    pub is_claimed: bool,
    /// Chunks that have their new vector.
    pub chunks_done: i64,
    /// Chunks that need one.
    pub chunks_total: i64,
    /// Why it failed or waits, for programs.
    pub error_code: Option<String>,
    /// The same for people.
    pub error_text: Option<String>,
    /// When it was asked for.
    pub started_at: OffsetDateTime,
}

/// What came of trying to change a store over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchEnd {
    /// Searches use the new vectors now.
    Done,
    /// There are chunks without one.
    Incomplete,
    /// The claim was lost, or somebody wants something else by now.
    Lost,
}

/// What a claim of a switch comes to, if not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchPause {
    /// Nothing more is tried until somebody asks for it again. The old vectors stay in use.
    Failed(DocumentFailure),
    /// It goes on later by itself; after `max_age` of this in a row it fails.
    Unavailable {
        /// What is away.
        failure: DocumentFailure,
        /// How long it waits.
        delay: Duration,
        /// How long it may go on like this.
        max_age: Duration,
    },
    /// It goes on when the project has a budget again.
    OutOfBudget(Duration),
    /// It is put back as it was, due after a while.
    PutBack(Duration),
}

impl Store {
    /// How far the switch of a store is; `None` when there is none.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_embedding_switch(&self, store: StoreId) -> Result<Option<SwitchState>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT connection_id, width, status, run_at, chunks_done, chunks_total, error_code, error_text, started_at,
                      coalesce(lease_until > clock_timestamp(), false) AS "is_claimed!"
                 FROM embedding_switches WHERE store_id = $1"#,
            store.0
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| SwitchState {
            connection: ConnectionId(row.connection_id),
            width: row.width,
            status: row.status,
            run_at: row.run_at,
            is_claimed: row.is_claimed,
            chunks_done: row.chunks_done,
            chunks_total: row.chunks_total,
            error_code: row.error_code,
            error_text: row.error_text,
            started_at: row.started_at,
        }))
    }

    /// Has a store of a project within reach embedded anew. What was being built for another connection is retired; what
    /// is there of this one is used. Asking for the connection that is in use ends a switch. The table of the width must
    /// be there; see [`Store::ensure_vector_table`].
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the store is gone or out of reach, or the connection is gone or has another model by
    /// now.
    pub async fn begin_embedding_switch(
        &self,
        reach: Reach,
        store: StoreId,
        new: &NewEmbedding,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let in_use = sqlx::query_scalar!(
            "SELECT embedding_revision_id FROM document_stores
              WHERE id = $1 AND deleted_at IS NULL AND can_reach_project(project_id, $2) FOR NO KEY UPDATE",
            store.0,
            reach.member()
        )
        .fetch_optional(&mut transaction)
        .await?
        .ok_or(StoreError::Conflict)?;
        let wanted = sqlx::query_scalar!(
            "WITH asked AS (
                 SELECT id FROM model_connections WHERE id = $1 AND model_name = $3 FOR SHARE)
             INSERT INTO embedding_revisions (connection_id, base_url, model_name, width)
             SELECT id, $2, $3, $4 FROM asked
             ON CONFLICT (connection_id, base_url, model_name, width) DO UPDATE SET width = excluded.width
             RETURNING id",
            new.connection.0,
            new.base_url,
            new.model_name,
            new.width
        )
        .fetch_optional(&mut transaction)
        .await?
        .ok_or(StoreError::Conflict)?;
        // Waits for whoever is removing these vectors right now.
        sqlx::query!(
            "DELETE FROM retired_embeddings WHERE store_id = $1 AND embedding_revision_id = $2",
            store.0,
            wanted
        )
        .execute(&mut transaction)
        .await?;
        sqlx::query!(
            "INSERT INTO retired_embeddings (store_id, embedding_revision_id, width)
             SELECT store_id, embedding_revision_id, width FROM embedding_switches
              WHERE store_id = $1 AND embedding_revision_id NOT IN ($2, $3)
             ON CONFLICT (store_id, embedding_revision_id) DO UPDATE SET retired_at = excluded.retired_at",
            store.0,
            wanted,
            in_use
        )
        .execute(&mut transaction)
        .await?;
        sqlx::query!("DELETE FROM embedding_switches WHERE store_id = $1", store.0).execute(&mut transaction).await?;
        if wanted != in_use {
            sqlx::query!(
                "INSERT INTO embedding_switches (store_id, connection_id, embedding_revision_id, width)
                 VALUES ($1, $2, $3, $4)",
                store.0,
                new.connection.0,
                wanted,
                new.width
            )
            .execute(&mut transaction)
            .await?;
        }
        sqlx::query_scalar!("SELECT record_change('store', $1, $2)", store.0, entry.to_json())
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Ends the switch of a store of a project within reach: what it is embedded with now, it stays with. What was built
    /// is retired. Nothing happens when there is no switch.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the store is gone or out of reach.
    pub async fn cancel_embedding_switch(
        &self,
        reach: Reach,
        store: StoreId,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let cancelled = sqlx::query!(
            r#"WITH place AS MATERIALIZED (
                   SELECT id FROM document_stores
                    WHERE id = $1 AND deleted_at IS NULL AND can_reach_project(project_id, $2) FOR NO KEY UPDATE
               ), switch AS (
                   DELETE FROM embedding_switches w USING place WHERE w.store_id = place.id
                   RETURNING w.store_id, w.embedding_revision_id, w.width
               ), retired AS (
                   INSERT INTO retired_embeddings (store_id, embedding_revision_id, width)
                   SELECT store_id, embedding_revision_id, width FROM switch
                   ON CONFLICT (store_id, embedding_revision_id) DO UPDATE SET retired_at = excluded.retired_at
               )
               SELECT place.id, (SELECT record_change('store', store_id, $3) FROM switch) AS sequence FROM place"#,
            store.0,
            reach.member(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        cancelled.map(|_| ()).ok_or(StoreError::NotFound)
    }

    /// Claims the switch that has waited longest, by the database's clock, if one is due that nobody is at. Connections
    /// in `left_alone` are passed over.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn claim_embedding_switch(
        &self,
        owner: &str,
        lease: Duration,
        left_alone: &[ConnectionId],
    ) -> Result<Option<Switch>, StoreError> {
        let left_alone: Vec<i64> = left_alone.iter().map(|connection| connection.0).collect();
        let row = sqlx::query!(
            "WITH claimed AS (
                 UPDATE embedding_switches w
                    SET claim = gen_random_uuid(), claimed_by = $1,
                        lease_until = clock_timestamp() + $2::bigint * interval '1 millisecond',
                        updated_at = clock_timestamp()
                  WHERE store_id = (
                      SELECT store_id FROM embedding_switches
                       WHERE status = 'building' AND run_at <= clock_timestamp()
                         AND (lease_until IS NULL OR lease_until < clock_timestamp())
                         AND connection_id <> ALL ($3::bigint[])
                       ORDER BY run_at, store_id LIMIT 1 FOR UPDATE SKIP LOCKED)
                 RETURNING w.store_id, w.claim, w.connection_id, w.embedding_revision_id, w.width, w.retries)
             SELECT claimed.store_id, claimed.claim, claimed.embedding_revision_id, claimed.width, claimed.retries,
                    s.project_id, s.chunk_tokens, s.chunk_overlap, s.contextual, s.language,
                    c.id AS connection_id, c.provider_type, c.base_url, c.model_name, c.credential_sealed
               FROM claimed
                    JOIN document_stores s ON s.id = claimed.store_id
                    JOIN model_connections c ON c.id = claimed.connection_id",
            owner,
            milliseconds(lease),
            &left_alone
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.and_then(|row| {
            Some(Switch {
                key: SwitchKey { store: StoreId(row.store_id), claim: row.claim? },
                settings: IngestSettings {
                    project: ProjectId(row.project_id),
                    chunk_tokens: row.chunk_tokens,
                    chunk_overlap: row.chunk_overlap,
                    contextual: row.contextual,
                    language: row.language,
                    embedding: UpstreamTarget::new(
                        row.connection_id,
                        &row.provider_type,
                        row.base_url,
                        row.model_name,
                        row.credential_sealed,
                    )?,
                    revision: EmbeddingRevisionId(row.embedding_revision_id),
                    width: row.width,
                },
                retries: row.retries,
            })
        }))
    }

    /// Keeps a claim of a switch. Returns whether it still held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn renew_embedding_switch(&self, key: SwitchKey, lease: Duration) -> Result<bool, StoreError> {
        let result = sqlx::query!(
            "UPDATE embedding_switches SET lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond'
              WHERE store_id = $1 AND claim = $2",
            key.store.0,
            key.claim,
            milliseconds(lease)
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }
}
