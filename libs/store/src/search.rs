//! What a search reads. Every statement filters by store and sees live content versions only.

use domain::{ChunkId, DocumentId, EmbeddingRevisionId, StoreId};

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
    /// Retrieval settings (JSON).
    pub retrieval: serde_json::Value,
}

/// How much is live in a store's lexical index.
#[derive(Clone, Copy, Debug, Default)]
pub struct LexicalCorpus {
    /// Chunks.
    pub chunks: i64,
    /// Indexed terms of all of them.
    pub terms: i64,
}

/// One term in one live segment.
#[derive(Clone, Debug)]
pub struct Posting {
    /// The term.
    pub term: String,
    /// The segment.
    pub segment: i64,
    /// Chunks that have the term, by ordinal.
    pub ordinals: Vec<i32>,
    /// How often each has it.
    pub frequencies: Vec<i16>,
}

/// A segment's chunks.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Which segment.
    pub id: i64,
    /// The document it is of.
    pub document: DocumentId,
    /// The live content version.
    pub content_version: i32,
    /// Ordinal of its first chunk.
    pub first_ordinal: i32,
    /// Indexed terms of each chunk.
    pub lengths: Vec<i32>,
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
                retrieval: row.retrieval,
            })
        }))
    }

    /// How much is live in a store's lexical index.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn lexical_corpus(&self, store: StoreId) -> Result<LexicalCorpus, StoreError> {
        Ok(sqlx::query_as!(
            LexicalCorpus,
            r#"SELECT coalesce(sum(s.chunk_count), 0)::bigint AS "chunks!",
                      coalesce(sum(s.total_length), 0)::bigint AS "terms!"
                 FROM posting_segments s
                      JOIN documents d ON d.id = s.document_id AND d.live_version = s.content_version
                WHERE s.store_id = $1"#,
            store.0
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Where the terms occur in a store's live segments.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_postings(&self, store: StoreId, terms: &[String]) -> Result<Vec<Posting>, StoreError> {
        Ok(sqlx::query_as!(
            Posting,
            "SELECT p.term, p.segment_id AS segment, p.ordinals, p.frequencies
               FROM postings p
                    JOIN posting_segments s ON s.id = p.segment_id
                    JOIN documents d ON d.id = s.document_id AND d.live_version = s.content_version
              WHERE p.store_id = $1 AND p.term = ANY ($2)",
            store.0,
            terms
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Segments of a store by id.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_segments(&self, store: StoreId, segments: &[i64]) -> Result<Vec<Segment>, StoreError> {
        let rows = sqlx::query!(
            "SELECT id, document_id, content_version, first_ordinal, lengths
               FROM posting_segments WHERE store_id = $1 AND id = ANY ($2)",
            store.0,
            segments
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Segment {
                id: row.id,
                document: DocumentId(row.document_id),
                content_version: row.content_version,
                first_ordinal: row.first_ordinal,
                lengths: row.lengths,
            })
            .collect())
    }

    /// The chunks at these places (document, content version, ordinal), in the same order; gone ones are `None`.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_chunks_at(
        &self,
        store: StoreId,
        places: &[(DocumentId, i32, i32)],
    ) -> Result<Vec<Option<ChunkId>>, StoreError> {
        let documents: Vec<i64> = places.iter().map(|place| place.0.0).collect();
        let versions: Vec<i32> = places.iter().map(|place| place.1).collect();
        let ordinals: Vec<i32> = places.iter().map(|place| place.2).collect();
        let rows = sqlx::query_scalar!(
            r#"SELECT c.id AS "id?"
                 FROM unnest($2::bigint[], $3::int[], $4::int[]) WITH ORDINALITY p (document, version, ordinal, place)
                      LEFT JOIN chunks c ON c.document_id = p.document AND c.content_version = p.version
                           AND c.ordinal = p.ordinal AND c.store_id = $1
                ORDER BY p.place"#,
            store.0,
            &documents,
            &versions,
            &ordinals
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|id| id.map(ChunkId)).collect())
    }

    /// Passages of a store by chunk, as long as they are live.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_passages(&self, store: StoreId, chunks: &[ChunkId]) -> Result<Vec<Passage>, StoreError> {
        let ids: Vec<i64> = chunks.iter().map(|chunk| chunk.0).collect();
        let rows = sqlx::query!(
            "SELECT c.id, c.document_id, d.file_name, d.title, c.ordinal, c.heading_path, c.page_from, c.page_to,
                    c.content, c.token_count
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
                content: row.content,
                token_count: row.token_count,
            })
            .collect())
    }
}
