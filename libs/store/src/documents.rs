//! Documents as the people who upload them see them. What workers do with them is in [`crate::queue`].

use domain::{DocumentId, StoreId};
use serde_json::Value;
use time::OffsetDateTime;

use crate::audit::AuditEntry;
use crate::{Reach, Store, StoreError};

/// A document.
#[derive(Clone, Debug)]
pub struct Document {
    /// Which one.
    pub id: i64,
    /// The store it is in.
    pub store_id: i64,
    /// The name it was uploaded under.
    pub file_name: String,
    /// Its title, once it was read.
    pub title: Option<String>,
    /// The uploader's own key for it.
    pub external_key: Option<String>,
    /// What it was found to be.
    pub media_type: String,
    /// Bytes.
    pub size: i64,
    /// What the uploader says about it.
    pub metadata: Value,
    /// `pending`, `delayed`, `processing`, `ready` or `failed`.
    pub status: String,
    /// What a worker is doing with it.
    pub stage: Option<String>,
    /// How much of that is done.
    pub progress_done: i32,
    /// Out of how much.
    pub progress_total: i32,
    /// Why it failed or waits, for programs.
    pub error_code: Option<String>,
    /// The same for people.
    pub error_text: Option<String>,
    /// Chunks of the version that can be found.
    pub chunk_count: i32,
    /// Pages, for formats that have them.
    pub page_count: Option<i32>,
    /// Counts contents and reprocesses.
    pub content_version: i32,
    /// The version that can be found.
    pub live_version: Option<i32>,
    /// Claims since the last upload, reprocess or finish.
    pub attempts: i32,
    /// Passing errors that it has waited out.
    pub retries: i32,
    /// When it is due, if it waits.
    pub run_at: OffsetDateTime,
    /// When it was first uploaded.
    pub created_at: OffsetDateTime,
    /// When it last changed.
    pub updated_at: OffsetDateTime,
    /// When its content was last made searchable.
    pub ready_at: Option<OffsetDateTime>,
}

/// Where a waiting document stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Its place among the waiting documents of its store, from 1. Stores take turns.
    pub position: i64,
    /// Documents waiting in all stores.
    pub waiting: i64,
    /// How long the oldest of them has been due, in seconds.
    pub oldest_age_seconds: i64,
}

/// The priority of what is read again in the background; an upload has 5, and smaller ones go first.
const BACKGROUND: i16 = 7;

macro_rules! select_documents {
    ($tail:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            Document,
            "SELECT d.id, d.store_id, d.file_name, d.title, d.external_key, d.media_type, d.size, d.metadata, d.status,
                    d.stage, d.progress_done, d.progress_total, d.error_code, d.error_text, d.chunk_count, d.page_count,
                    d.content_version, d.live_version, d.attempts, d.retries, d.run_at, d.created_at, d.updated_at, d.ready_at
               FROM documents d JOIN document_stores s ON s.id = d.store_id " + $tail
            $(, $argument)*
        )
    };
}

/// A document by its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDocument {
    /// Which document.
    pub id: DocumentId,
    /// The uploader's own key.
    pub external_key: Option<String>,
    /// The name it was uploaded under.
    pub file_name: String,
}

impl Store {
    /// The documents of a store, newest first, before a given one, at most `limit`; of one status when one is given.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_documents(
        &self,
        store: StoreId,
        before: Option<DocumentId>,
        status: Option<&str>,
        limit: i64,
    ) -> Result<Vec<Document>, StoreError> {
        Ok(select_documents!(
            "WHERE d.store_id = $1 AND d.deleted_at IS NULL AND ($2::bigint IS NULL OR d.id < $2)
               AND ($3::text IS NULL OR d.status = $3)
             ORDER BY d.id DESC LIMIT $4",
            store.0,
            before.map(|document| document.0),
            status,
            limit
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// One document of a store within reach.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_document(&self, reach: Reach, id: DocumentId) -> Result<Option<Document>, StoreError> {
        Ok(select_documents!(
            "WHERE d.id = $1 AND d.deleted_at IS NULL AND s.deleted_at IS NULL
               AND (can_reach_project(s.project_id, $2)
                    OR EXISTS (SELECT FROM project_stores g
                                WHERE g.store_id = s.id AND can_reach_project(g.project_id, $2)))",
            id.0,
            reach.member()
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Where a document stands that is pending now; `None` for every other.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_queue_place(&self, id: DocumentId) -> Result<Option<QueuePlace>, StoreError> {
        Ok(sqlx::query_as!(
            QueuePlace,
            r#"SELECT (SELECT count(*) + 1 FROM documents p
                        WHERE p.status = 'pending' AND p.store_id = d.store_id
                          AND (p.priority, p.run_at, p.id) < (d.priority, d.run_at, d.id)) AS "position!",
                      every.waiting AS "waiting!",
                      greatest(extract(epoch FROM clock_timestamp() - every.oldest), 0)::bigint AS "oldest_age_seconds!"
                 FROM documents d
                      CROSS JOIN LATERAL (SELECT count(*) AS waiting, min(p.run_at) AS oldest
                                            FROM documents p WHERE p.status = 'pending') every
                WHERE d.id = $1 AND d.status = 'pending'"#,
            id.0
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Documents that wait for a worker, in all stores. Those that are read again in the background are not among them.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn count_pending_documents(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM documents WHERE status = 'pending' AND priority < $1"#,
            BACKGROUND
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Has a document of a store within reach read again, whatever state it is in: its content gets a new version, the
    /// old one stays searchable until that is complete, and a worker that is at it loses its claim.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn reprocess_document(&self, reach: Reach, id: DocumentId, entry: &AuditEntry) -> Result<(), StoreError> {
        let again = sqlx::query!(
            "WITH again AS (
                 UPDATE documents d
                    SET content_version = content_version + 1, status = 'pending', run_at = clock_timestamp(), priority = 5,
                        claimed_by = NULL, claim_token = claim_token + 1, claimed_at = NULL, lease_until = NULL,
                        attempts = 0, parser_deaths = 0, retries = 0, retrying_since = NULL, stage = NULL,
                        progress_done = 0, progress_total = 0, error_code = NULL, error_text = NULL,
                        updated_at = clock_timestamp()
                   FROM document_stores s
                  WHERE d.id = $1 AND d.deleted_at IS NULL AND s.id = d.store_id AND s.deleted_at IS NULL
                    AND can_reach_project(s.project_id, $2)
                 RETURNING d.id)
             SELECT record_audit('document', id, $3) AS entry, pg_notify(notification_channel('documents'), '') FROM again",
            id.0,
            reach.member(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        again.map(|_| ()).ok_or(StoreError::NotFound)
    }

    /// Has up to `limit` documents of a store after a given one read again, as [`Store::reprocess_document`] does, but in
    /// the background: uploads to the store go before them. Those that wait to be read anyway are left as they are.
    /// Returns how many documents were looked at and the last of them.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn reprocess_documents(
        &self,
        store: StoreId,
        after: DocumentId,
        limit: i64,
    ) -> Result<(i64, Option<DocumentId>), StoreError> {
        let row = sqlx::query!(
            r#"WITH looked_at AS MATERIALIZED (
                   SELECT d.id FROM documents d JOIN document_stores s ON s.id = d.store_id
                    WHERE d.store_id = $1 AND d.id > $2 AND d.deleted_at IS NULL AND s.deleted_at IS NULL
                    ORDER BY d.id LIMIT $3),
               again AS (
                   UPDATE documents d
                      SET content_version = content_version + 1, status = 'pending', run_at = clock_timestamp(),
                          priority = $4, claimed_by = NULL, claim_token = claim_token + 1, claimed_at = NULL,
                          lease_until = NULL, attempts = 0, parser_deaths = 0, retries = 0, retrying_since = NULL,
                          stage = NULL, progress_done = 0, progress_total = 0, error_code = NULL, error_text = NULL,
                          updated_at = clock_timestamp()
                     FROM looked_at WHERE d.id = looked_at.id AND d.status <> 'pending' AND d.deleted_at IS NULL
                   RETURNING d.id),
               told AS (
                   SELECT pg_notify(notification_channel('documents'), '') WHERE EXISTS (SELECT FROM again))
               SELECT (SELECT count(*) FROM looked_at) AS "looked_at!", (SELECT max(id) FROM looked_at) AS last,
                      (SELECT count(*) FROM told) AS "told!""#,
            store.0,
            after.0,
            limit,
            BACKGROUND
        )
        .fetch_one(self.pool())
        .await?;
        Ok((row.looked_at, row.last.map(DocumentId)))
    }
    /// The documents of a store that are named by id, by external key or by file name.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_named_documents(
        &self,
        store: StoreId,
        ids: &[DocumentId],
        external_keys: &[String],
        file_names: &[String],
    ) -> Result<Vec<NamedDocument>, StoreError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            "SELECT id, external_key, file_name FROM documents
              WHERE store_id = $1 AND (id = ANY ($2) OR external_key = ANY ($3) OR file_name = ANY ($4))",
            store.0,
            &ids,
            external_keys,
            file_names
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| NamedDocument {
                id: DocumentId(row.id),
                external_key: row.external_key,
                file_name: row.file_name,
            })
            .collect())
    }
}
