//! Document stores: what documents are uploaded to and passages are searched in.

use domain::{ConnectionId, EmbeddingRevisionId, ProjectId, SearchTuning, StoreId};
use time::OffsetDateTime;

use crate::audit::AuditEntry;
use crate::{Reach, Store, StoreError};

/// What people set of a store after it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSettings {
    /// Its name, unique in its project.
    pub name: String,
    /// Tokens a chunk has at most.
    pub chunk_tokens: i32,
    /// Tokens two neighbouring chunks share.
    pub chunk_overlap: i32,
    /// Whether title and headings are embedded with the text.
    pub contextual: bool,
    /// The language of its documents as an ISO 639-1 code, `None` to detect it.
    pub language: Option<String>,
    /// Documents of it ingested at one time; 0 is no bound.
    pub max_running: i32,
    /// Documents it may hold; 0 is no bound.
    pub max_documents: i64,
    /// Bytes its documents may have together; 0 is no bound.
    pub max_bytes: i64,
    /// Days a document stays after it was uploaded or got new content; 0 is for ever.
    pub max_age_days: i32,
    /// How it is searched.
    pub search: SearchTuning,
}

/// A store as it is made.
#[derive(Clone, Debug)]
pub struct NewDocumentStore {
    /// The project that owns it and pays for it.
    pub project: ProjectId,
    /// The connection that embeds.
    pub connection: ConnectionId,
    /// The address and model the width was probed at.
    pub base_url: String,
    /// The model's name.
    pub model_name: String,
    /// Dimensions of its vectors.
    pub width: i32,
    /// What people set.
    pub settings: StoreSettings,
}

/// A store as stored, with what it holds.
#[derive(Clone, Debug)]
pub struct DocumentStore {
    /// Which one.
    pub id: StoreId,
    /// The project that owns it.
    pub project: ProjectId,
    /// What people set.
    pub settings: StoreSettings,
    /// The connection that embeds.
    pub connection: ConnectionId,
    /// The identity of its vectors.
    pub embedding_revision: EmbeddingRevisionId,
    /// Dimensions of its vectors.
    pub width: i32,
    /// Counts changes of its settings.
    pub revision: i64,
    /// Documents in it.
    pub document_count: i64,
    /// Bytes they have together.
    pub bytes_used: i64,
    /// Chunks that can be found.
    pub chunk_count: i64,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When its settings were changed.
    pub updated_at: OffsetDateTime,
}

impl Store {
    /// The stores within reach: those of one's projects and those granted to them. One of them when an id is given.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_document_stores(
        &self,
        reach: Reach,
        only: Option<StoreId>,
    ) -> Result<Vec<DocumentStore>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.id, s.project_id, s.name, s.embedding_connection_id, s.embedding_revision_id, s.width,
                      s.chunk_tokens, s.chunk_overlap, s.contextual, s.language, s.max_running, s.max_documents,
                      s.max_bytes, s.max_age_days, s.retrieval, s.revision, s.created_at, s.updated_at,
                      held.documents AS "documents!",
                      held.bytes AS "bytes!", held.chunks AS "chunks!"
                 FROM document_stores s
                      CROSS JOIN LATERAL (
                          SELECT count(*) AS documents, coalesce(sum(d.size), 0)::bigint AS bytes,
                                 coalesce(sum(d.chunk_count) FILTER (WHERE d.live_version IS NOT NULL), 0)::bigint AS chunks
                            FROM documents d WHERE d.store_id = s.id AND d.deleted_at IS NULL) held
                WHERE ($2::bigint IS NULL OR s.id = $2) AND s.deleted_at IS NULL
                  AND (can_reach_project(s.project_id, $1)
                       OR EXISTS (SELECT FROM project_stores g
                                   WHERE g.store_id = s.id AND can_reach_project(g.project_id, $1)))
                ORDER BY s.project_id, s.name LIMIT 10000"#,
            reach.member(),
            only.map(|store| store.0)
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| DocumentStore {
                id: StoreId(row.id),
                project: ProjectId(row.project_id),
                settings: StoreSettings {
                    name: row.name,
                    chunk_tokens: row.chunk_tokens,
                    chunk_overlap: row.chunk_overlap,
                    contextual: row.contextual,
                    language: row.language,
                    max_running: row.max_running,
                    max_documents: row.max_documents,
                    max_bytes: row.max_bytes,
                    max_age_days: row.max_age_days,
                    search: serde_json::from_value(row.retrieval).unwrap_or_default(),
                },
                connection: ConnectionId(row.embedding_connection_id),
                embedding_revision: EmbeddingRevisionId(row.embedding_revision_id),
                width: row.width,
                revision: row.revision,
                document_count: row.documents,
                bytes_used: row.bytes,
                chunk_count: row.chunks,
                created_at: row.created_at,
                updated_at: row.updated_at,
            })
            .collect())
    }

    /// Whether a store is within reach to be read: one's projects own it or were granted it.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn may_read_store(&self, reach: Reach, store: StoreId) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (
                   SELECT FROM document_stores s
                    WHERE s.id = $1 AND s.deleted_at IS NULL
                      AND (can_reach_project(s.project_id, $2)
                           OR EXISTS (SELECT FROM project_stores g
                                       WHERE g.store_id = s.id AND can_reach_project(g.project_id, $2)))) AS "may!""#,
            store.0,
            reach.member()
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Whether a store is within reach to be written to: one's projects own it.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn may_write_store(&self, reach: Reach, store: StoreId) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM document_stores
                               WHERE id = $1 AND deleted_at IS NULL AND can_reach_project(project_id, $2)) AS "may!""#,
            store.0,
            reach.member()
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Whether a project may search a store: its own, or one it was granted.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn may_search(&self, project: ProjectId, store: StoreId) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM document_stores s WHERE s.id = $2 AND s.project_id = $1 AND s.deleted_at IS NULL)
                      OR EXISTS (SELECT FROM project_stores g WHERE g.store_id = $2 AND g.project_id = $1) AS "may!""#,
            project.0,
            store.0
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Makes a store of a project within reach, and the identity of its vectors if no other store has it. The table of
    /// its width must be there; see [`Store::ensure_vector_table`].
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the project has a store of that name; [`StoreError::Conflict`] when the project
    /// is gone or out of reach, or the connection is gone or has another model by now.
    pub async fn create_document_store(
        &self,
        reach: Reach,
        new: &NewDocumentStore,
        entry: &AuditEntry,
    ) -> Result<StoreId, StoreError> {
        let settings = &new.settings;
        let made = sqlx::query!(
            r#"WITH asked AS (
                   -- Locked, so that nobody gives it another model between this and the store.
                   SELECT id FROM model_connections WHERE id = $3 AND model_name = $5 FOR SHARE),
               identity AS (
                   INSERT INTO embedding_revisions (connection_id, base_url, model_name, width)
                   SELECT a.id, $4, $5, $6 FROM asked a, projects p WHERE p.id = $1 AND can_reach_project(p.id, $2)
                   -- Changes nothing, but makes the row that is there already an answer.
                   ON CONFLICT (connection_id, base_url, model_name, width) DO UPDATE SET width = excluded.width
                   RETURNING id),
               made AS (
                   INSERT INTO document_stores (project_id, name, embedding_connection_id, embedding_revision_id, width,
                                                chunk_tokens, chunk_overlap, contextual, language, max_running,
                                                max_documents, max_bytes, max_age_days, retrieval)
                   SELECT $1, $7, $3, id, $6, $8, $9, $10, $11, $12, $13, $14, $16, $17 FROM identity
                   RETURNING id)
               SELECT id AS "id!", record_change('store', id, $15) AS sequence FROM made"#,
            new.project.0,
            reach.member(),
            new.connection.0,
            new.base_url,
            new.model_name,
            new.width,
            settings.name,
            settings.chunk_tokens,
            settings.chunk_overlap,
            settings.contextual,
            settings.language,
            settings.max_running,
            settings.max_documents,
            settings.max_bytes,
            entry.to_json(),
            settings.max_age_days,
            json(&settings.search)
        )
        .fetch_optional(self.pool())
        .await?;
        made.map(|made| StoreId(made.id)).ok_or(StoreError::Conflict)
    }

    /// Changes a store of a project within reach that still has the given revision. Documents that are there keep their
    /// chunks until they are reprocessed.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the name is taken, [`StoreError::Conflict`] when the store was changed or
    /// deleted meanwhile.
    pub async fn update_document_store(
        &self,
        reach: Reach,
        id: StoreId,
        revision: i64,
        settings: &StoreSettings,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let changed = sqlx::query_scalar!(
            "WITH changed AS (
                 UPDATE document_stores
                    SET name = $4, chunk_tokens = $5, chunk_overlap = $6, contextual = $7, language = $8,
                        max_running = $9, max_documents = $10, max_bytes = $11, max_age_days = $13, retrieval = $14,
                        revision = revision + 1, updated_at = clock_timestamp()
                  WHERE id = $1 AND deleted_at IS NULL AND revision = $2 AND can_reach_project(project_id, $3)
                 RETURNING id)
             SELECT record_change('store', id, $12) FROM changed",
            id.0,
            revision,
            reach.member(),
            settings.name,
            settings.chunk_tokens,
            settings.chunk_overlap,
            settings.contextual,
            settings.language,
            settings.max_running,
            settings.max_documents,
            settings.max_bytes,
            entry.to_json(),
            settings.max_age_days,
            json(&settings.search)
        )
        .fetch_optional(self.pool())
        .await?;
        changed.map(|_| ()).ok_or(StoreError::Conflict)
    }
}

/// The settings as they are kept. Numbers that JSON has no form for were refused before.
fn json(search: &SearchTuning) -> serde_json::Value {
    serde_json::to_value(search).unwrap_or_else(|_| serde_json::Value::Object(serde_json::Map::new()))
}
