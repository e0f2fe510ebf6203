//! What a search reads. Every statement filters by store and sees live content versions only.

use domain::{ChunkId, DocumentId, EmbeddingRevisionId, SearchTuning, StoreId};

use crate::targets::UpstreamTarget;
use crate::{Store, StoreError};

/// A store as a search needs to know it.
#[derive(Clone, Debug)]
pub struct SearchSettings {
    /// Which store.
    pub store: StoreId,
    /// The model whose vectors are live.
    pub embedding: UpstreamTarget,
    /// The identity of those vectors.
    pub revision: EmbeddingRevisionId,
    /// Their dimensions.
    pub width: i32,
    /// The store's language, as an ISO 639-1 code.
    pub language: Option<String>,
    /// Changes with every document that becomes live or goes.
    pub content_revision: i64,
    /// How it is searched.
    pub tuning: SearchTuning,
}

/// A chunk and its distance to the query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VectorHit {
    /// Which chunk.
    pub chunk: ChunkId,
    /// Cosine distance, 0 to 2.
    pub distance: f64,
}

/// A passage as it is shown.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Which chunk.
    pub chunk: ChunkId,
    /// The document it is of.
    pub document: DocumentId,
    /// The name the document was uploaded under.
    pub file_name: String,
    /// The document's title.
    pub title: Option<String>,
    /// Its number in the document.
    pub ordinal: i32,
    /// Headings above it.
    pub heading_path: String,
    /// First page it stands on.
    pub page_from: Option<i32>,
    /// Last page it stands on.
    pub page_to: Option<i32>,
    /// Its first character in the document's text.
    pub char_from: i32,
    /// The character after its last.
    pub char_to: i32,
    /// Its text.
    pub content: String,
    /// Its tokens.
    pub token_count: i32,
}

impl Store {
    /// A store's search settings; `None` when it is gone or its provider is unknown to this build.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_search_settings(&self, store: StoreId) -> Result<Option<SearchSettings>, StoreError> {
        let row = sqlx::query!(
            "SELECT s.id, s.embedding_revision_id, s.width, s.language, s.content_revision, s.retrieval,
                    c.id AS connection_id, c.provider_type, c.base_url, c.model_name, c.credential_sealed
               FROM document_stores s JOIN model_connections c ON c.id = s.embedding_connection_id
              WHERE s.id = $1 AND s.deleted_at IS NULL",
            store.0
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.and_then(|row| {
            Some(SearchSettings {
                store: StoreId(row.id),
                embedding: UpstreamTarget::new(
                    row.connection_id,
                    &row.provider_type,
                    row.base_url,
                    row.model_name,
                    row.credential_sealed,
                )?,
                revision: EmbeddingRevisionId(row.embedding_revision_id),
                width: row.width,
                language: row.language,
                content_revision: row.content_revision,
                // What cannot be read was refused when it was stored; a later build's settings must not stop this one.
                tuning: serde_json::from_value(row.retrieval).unwrap_or_default(),
            })
        }))
    }

    /// Passages of a store by chunk, as long as they are live.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_passages(&self, store: StoreId, chunks: &[ChunkId]) -> Result<Vec<Passage>, StoreError> {
        let ids: Vec<i64> = chunks.iter().map(|chunk| chunk.0).collect();
        let rows = sqlx::query!(
            "SELECT c.id, c.document_id, d.file_name, d.title, c.ordinal, c.heading_path, c.page_from, c.page_to,
                    c.char_from, c.char_to, c.content, c.token_count
               FROM chunks c JOIN documents d ON d.id = c.document_id AND d.live_version = c.content_version
              WHERE c.store_id = $1 AND c.id = ANY ($2)",
            store.0,
            &ids
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Passage {
                chunk: ChunkId(row.id),
                document: DocumentId(row.document_id),
                file_name: row.file_name,
                title: row.title,
                ordinal: row.ordinal,
                heading_path: row.heading_path,
                page_from: row.page_from,
                page_to: row.page_to,
                char_from: row.char_from,
                char_to: row.char_to,
                content: row.content,
                token_count: row.token_count,
            })
            .collect())
    }
}
