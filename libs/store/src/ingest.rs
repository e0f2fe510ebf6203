//! What a worker reads and writes for a claimed document.
//!
//! Chunks, postings and vectors of a new content version go in batch by batch and stay invisible; one statement makes
//! the complete version live.

use std::time::Duration;

use domain::{DocumentId, EmbeddingRevisionId, ProjectId};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use crate::queue::ClaimKey;
use crate::targets::UpstreamTarget;
use crate::{Store, StoreError};

/// How the store of a document wants it ingested.
#[derive(Clone, Debug)]
pub struct IngestSettings {
    /// The owning project, which pays.
    pub project: ProjectId,
    /// Tokens a chunk has at most.
    pub chunk_tokens: i32,
    /// Tokens two neighbouring chunks share.
    pub chunk_overlap: i32,
    /// Whether title and headings are embedded with the text.
    pub contextual: bool,
    /// The language of the store, as an ISO 639-1 code; detected when absent.
    pub language: Option<String>,
    /// The model that embeds.
    pub embedding: UpstreamTarget,
    /// The identity of that model's vectors.
    pub revision: EmbeddingRevisionId,
    /// Their dimensions.
    pub width: i32,
}

/// One passage to be written.
#[derive(Clone, Debug)]
pub struct NewChunk {
    /// Its number in the document, from 0.
    pub ordinal: i32,
    /// Its text.
    pub content: String,
    /// Headings above it, outermost first, joined with ` > `.
    pub heading_path: String,
    /// First page it stands on.
    pub page_from: Option<i32>,
    /// Last page it stands on.
    pub page_to: Option<i32>,
    /// First character in the document's text.
    pub char_from: i32,
    /// Character after its last.
    pub char_to: i32,
    /// Its tokens.
    pub token_count: i32,
    /// SHA-256 of what is embedded.
    pub content_hash: Vec<u8>,
    /// Its vector.
    pub embedding: Vec<f32>,
}

/// The lexical index of a batch of chunks.
#[derive(Clone, Debug, Default)]
pub struct NewSegment {
    /// Indexed terms of each chunk, in the order of the chunks.
    pub lengths: Vec<i32>,
    /// The batch's terms.
    pub postings: Vec<NewPosting>,
}

/// One term of a segment.
#[derive(Clone, Debug)]
pub struct NewPosting {
    /// The term, as the analyzer writes it.
    pub term: String,
    /// The chunks that have it.
    pub ordinals: Vec<i32>,
    /// How often each has it.
    pub frequencies: Vec<i16>,
}

/// What is known of a document when it is complete.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Chunks it was cut into; the finish is refused unless as many are written.
    pub chunks: i32,
    /// The model whose vectors they have; the finish is refused unless the store is still embedded by it.
    pub revision: EmbeddingRevisionId,
    /// Pages, for formats that have them.
    pub pages: Option<i32>,
    /// Its title.
    pub title: Option<String>,
    /// How it was extracted: engine, sanity, charset and the like.
    pub extraction: Value,
}

/// What a provider was paid for embedding a part of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paid {
    /// Tokens.
    pub tokens: i64,
    /// What they cost, in nano-USD.
    pub cost: i64,
}

/// Documents of which something is left that is neither live nor being written.
#[derive(Clone, Debug, Default)]
pub struct OldVersions {
    /// The documents.
    pub documents: Vec<DocumentId>,
    /// The last document that was looked at. `None` when there is none after the one asked for.
    pub looked_at: Option<DocumentId>,
}

/// Removed by one statement at most. Each segment takes its postings along, thousands of rows.
const OLD_CHUNKS: i64 = 500;
const OLD_SEGMENTS: i64 = 16;

impl Store {
    /// How a document is to be ingested; `None` when it is gone or its provider is unknown to this build.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_ingest_settings(&self, document: DocumentId) -> Result<Option<IngestSettings>, StoreError> {
        let row = sqlx::query!(
            "SELECT s.project_id, s.chunk_tokens, s.chunk_overlap, s.contextual, s.language, s.embedding_revision_id,
                    s.width, c.id AS connection_id, c.provider_type, c.base_url, c.model_name, c.credential_sealed
               FROM documents d
                    JOIN document_stores s ON s.id = d.store_id
                    JOIN model_connections c ON c.id = s.embedding_connection_id
              WHERE d.id = $1 AND d.deleted_at IS NULL AND s.deleted_at IS NULL",
            document.0
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.and_then(|row| {
            Some(IngestSettings {
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
            })
        }))
    }

    /// Makes the vector table of a width if it is missing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] above 4,000 dimensions; otherwise as for any statement.
    pub async fn ensure_vector_table(&self, width: i32) -> Result<(), StoreError> {
        sqlx::query!("SELECT ensure_vector_table($1)", width).execute(self.pool()).await?;
        Ok(())
    }

    /// The hashes of the chunks that an earlier claim of the same content version has written, by ordinal, and whether
    /// each has its vector of the store's model as it is now. They have their postings: a batch is one statement.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_written_chunks(
        &self,
        key: ClaimKey,
        settings: &IngestSettings,
    ) -> Result<Vec<(i32, Vec<u8>, bool)>, StoreError> {
        let statement = format!(
            "SELECT c.ordinal, c.content_hash,
                    EXISTS (SELECT FROM chunk_embeddings_{} e
                             WHERE e.chunk_id = c.id AND e.embedding_revision_id = $3)
               FROM chunks c WHERE c.document_id = $1 AND c.content_version = $2 ORDER BY c.ordinal",
            settings.width
        );
        Ok(sqlx::query_as(AssertSqlSafe(statement))
            .bind(key.document.0)
            .bind(key.content_version)
            .bind(settings.revision.0)
            .fetch_all(self.pool())
            .await?)
    }

    /// Removes what a claim, this one or an earlier, wrote under other settings, as long as this claim holds. Returns
    /// whether it did.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn discard_written_chunks(&self, key: ClaimKey) -> Result<bool, StoreError> {
        let held = sqlx::query_scalar!(
            r#"WITH fence AS MATERIALIZED (
                 SELECT id FROM documents
                  WHERE id = $1 AND claim_token = $2 AND content_version = $3 AND status = 'processing' FOR SHARE
             ), segments AS (
                 DELETE FROM posting_segments USING fence
                  WHERE document_id = fence.id AND content_version = $3
             ), gone AS (
                 DELETE FROM chunks USING fence WHERE document_id = fence.id AND content_version = $3
             )
             SELECT EXISTS (SELECT FROM fence) AS "held!""#,
            key.document.0,
            key.token,
            key.content_version
        )
        .fetch_one(self.pool())
        .await?;
        Ok(held)
    }

    /// Writes a batch of consecutive chunks with their vectors and postings, in one statement that holds the document's
    /// row shared. Returns whether the claim still held; if not, nothing was written.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn write_chunks(
        &self,
        key: ClaimKey,
        settings: &IngestSettings,
        chunks: &[NewChunk],
        segment: &NewSegment,
    ) -> Result<bool, StoreError> {
        let Some(first) = chunks.first() else { return Ok(true) };
        let vectors: Vec<f32> = chunks.iter().flat_map(|chunk| chunk.embedding.iter().copied()).collect();
        let (ordinals, frequencies, sizes) = flatten(&segment.postings);
        let column = |text: fn(&NewChunk) -> &str| chunks.iter().map(text).collect::<Vec<_>>();
        let number = |value: fn(&NewChunk) -> i32| chunks.iter().map(value).collect::<Vec<_>>();
        let page = |value: fn(&NewChunk) -> Option<i32>| chunks.iter().map(value).collect::<Vec<_>>();
        let hashes: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.content_hash.as_slice()).collect();
        let terms: Vec<&str> = segment.postings.iter().map(|posting| posting.term.as_str()).collect();
        let total: i64 = segment.lengths.iter().map(|length| i64::from(*length)).sum();
        let written: bool = sqlx::query_scalar(AssertSqlSafe(write_statement(settings.width)))
            .bind(key.document.0)
            .bind(key.token)
            .bind(key.content_version)
            .bind(number(|chunk| chunk.ordinal))
            .bind(column(|chunk| &chunk.content))
            .bind(column(|chunk| &chunk.heading_path))
            .bind(page(|chunk| chunk.page_from))
            .bind(page(|chunk| chunk.page_to))
            .bind(number(|chunk| chunk.char_from))
            .bind(number(|chunk| chunk.char_to))
            .bind(number(|chunk| chunk.token_count))
            .bind(hashes)
            .bind(vectors)
            .bind(settings.revision.0)
            .bind(first.ordinal)
            .bind(&segment.lengths)
            .bind(total)
            .bind(terms)
            .bind(sizes)
            .bind(ordinals)
            .bind(frequencies)
            .fetch_one(self.pool())
            .await?;
        Ok(written)
    }

    /// Makes a complete content version live: one statement checks the claim, that every planned chunk is there, and that
    /// the store is still embedded by the model whose vectors they have, and switches the document over. Returns whether
    /// it did.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when it takes longer than `patience`; otherwise as for any statement.
    pub async fn finish_document(
        &self,
        key: ClaimKey,
        finish: &Finish,
        patience: Duration,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.begin_by_index(patience).await?;
        let done = sqlx::query_scalar!(
            "WITH place AS MATERIALIZED (
                 -- The store before the document, as uploads lock them.
                 SELECT s.id FROM documents d JOIN document_stores s ON s.id = d.store_id
                  WHERE d.id = $1 AND d.claim_token = $2 AND d.content_version = $3 AND d.status = 'processing'
                    AND s.embedding_revision_id = $8
                    FOR NO KEY UPDATE OF s
             ), finished AS (
                 UPDATE documents d
                    SET status = 'ready', priority = 5, live_version = d.content_version, chunk_count = $4::int, page_count = $5,
                        title = $6, extraction = $7, attempts = 0, parser_deaths = 0, retries = 0,
                        retrying_since = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, stage = NULL,
                        progress_done = $4::int, progress_total = $4::int, error_code = NULL, error_text = NULL,
                        ready_at = clock_timestamp(), updated_at = clock_timestamp()
                   FROM place
                  WHERE d.id = $1 AND d.claim_token = $2 AND d.content_version = $3 AND d.status = 'processing'
                    AND (SELECT count(*) FROM chunks c WHERE c.document_id = $1 AND c.content_version = $3) = $4::int
                 RETURNING d.id, d.store_id
             ), store AS (
                 UPDATE document_stores s SET content_revision = content_revision + 1 FROM finished
                  WHERE s.id = finished.store_id
             )
             SELECT id FROM finished",
            key.document.0,
            key.token,
            key.content_version,
            finish.chunks,
            finish.pages,
            finish.title,
            finish.extraction,
            finish.revision.0
        )
        .fetch_optional(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(done.is_some())
    }

    /// Removes some chunks and segments of versions that are neither live nor being written, a bounded number at a time.
    /// Returns whether more may be left.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delete_old_versions(&self, document: DocumentId) -> Result<bool, StoreError> {
        let gone = sqlx::query!(
            r#"WITH chunk AS (
                   DELETE FROM chunks WHERE id IN (
                       SELECT c.id FROM chunks c JOIN documents d ON d.id = c.document_id
                        WHERE d.id = $1 AND c.content_version IS DISTINCT FROM d.live_version
                          AND c.content_version < d.content_version
                        LIMIT $2)
                   RETURNING id
               ), segment AS (
                   DELETE FROM posting_segments WHERE id IN (
                       SELECT s.id FROM posting_segments s JOIN documents d ON d.id = s.document_id
                        WHERE d.id = $1 AND s.content_version IS DISTINCT FROM d.live_version
                          AND s.content_version < d.content_version
                        LIMIT $3)
                   RETURNING id
               )
               SELECT (SELECT count(*) FROM chunk) AS "chunks!", (SELECT count(*) FROM segment) AS "segments!""#,
            document.0,
            OLD_CHUNKS,
            OLD_SEGMENTS
        )
        .fetch_one(self.pool())
        .await?;
        Ok(gone.chunks == OLD_CHUNKS || gone.segments == OLD_SEGMENTS)
    }

    /// Looks at the `window` documents after one and returns those that have something for
    /// [`Store::delete_old_versions`]: what a worker left that died or failed after a finish.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_old_versions(&self, after: DocumentId, window: i64) -> Result<OldVersions, StoreError> {
        let row = sqlx::query!(
            r#"WITH looked_at AS MATERIALIZED (
                   SELECT id, content_version, live_version FROM documents WHERE id > $1 ORDER BY id LIMIT $2
               ), old AS MATERIALIZED (
                   SELECT d.id FROM looked_at d
                    WHERE d.content_version > 1 AND CASE
                        WHEN EXISTS (SELECT FROM posting_segments s
                                      WHERE s.document_id = d.id AND s.content_version < d.content_version
                                        AND s.content_version IS DISTINCT FROM d.live_version) THEN true
                        ELSE EXISTS (SELECT FROM chunks c
                                      WHERE c.document_id = d.id AND c.content_version < d.content_version
                                        AND c.content_version IS DISTINCT FROM d.live_version) END
               )
               SELECT (SELECT max(id) FROM looked_at) AS looked_at,
                      coalesce((SELECT array_agg(id ORDER BY id) FROM old), '{}') AS "documents!""#,
            after.0,
            window
        )
        .fetch_one(self.pool())
        .await?;
        Ok(OldVersions {
            documents: row.documents.into_iter().map(DocumentId).collect(),
            looked_at: row.looked_at.map(DocumentId),
        })
    }

    /// Vectors this project has paid for already, by content hash. What is found counts as used today.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_memoised_embeddings(
        &self,
        project: ProjectId,
        revision: EmbeddingRevisionId,
        hashes: &[Vec<u8>],
    ) -> Result<Vec<(Vec<u8>, Vec<f32>)>, StoreError> {
        let rows = sqlx::query!(
            "WITH touched AS (
                 UPDATE embedding_memo SET last_used_on = CURRENT_DATE
                  WHERE project_id = $1 AND embedding_revision_id = $2 AND content_hash = ANY ($3)
                    AND last_used_on < CURRENT_DATE
             )
             SELECT content_hash, embedding FROM embedding_memo
              WHERE project_id = $1 AND embedding_revision_id = $2 AND content_hash = ANY ($3)",
            project.0,
            revision.0,
            hashes
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (row.content_hash, row.embedding)).collect())
    }

    /// Remembers vectors the project has paid for, whatever became of the claim, and adds the price to the document as
    /// long as the claim holds: both or neither. Returns whether it held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn memoise_embeddings(
        &self,
        key: ClaimKey,
        settings: &IngestSettings,
        hashes: &[Vec<u8>],
        vectors: &[Vec<f32>],
        paid: Paid,
    ) -> Result<bool, StoreError> {
        let width = vectors.first().map_or(0, Vec::len);
        let flat: Vec<f32> = vectors.iter().flatten().copied().collect();
        let result = sqlx::query!(
            "WITH memo AS (
                 INSERT INTO embedding_memo (project_id, embedding_revision_id, content_hash, embedding)
                 SELECT $1, $2, h.hash, ($4::real[])[(h.place - 1) * $5::int + 1 : h.place * $5::int]
                   FROM unnest($3::bytea[]) WITH ORDINALITY h (hash, place)
                 ON CONFLICT DO NOTHING
             )
             UPDATE documents SET embedded_tokens = embedded_tokens + $6, embedding_cost = embedding_cost + $7
              WHERE id = $8 AND claim_token = $9 AND content_version = $10 AND status = 'processing'",
            settings.project.0,
            settings.revision.0,
            hashes,
            &flat,
            i32::try_from(width).unwrap_or(0),
            paid.tokens,
            paid.cost,
            key.document.0,
            key.token,
            key.content_version
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }
}

/// PostgreSQL has no arrays of arrays of different lengths: the lists of all postings one after the other, and how long
/// each is.
fn flatten(postings: &[NewPosting]) -> (Vec<i32>, Vec<i16>, Vec<i32>) {
    let ordinals = postings.iter().flat_map(|posting| posting.ordinals.iter().copied()).collect();
    let frequencies = postings.iter().flat_map(|posting| posting.frequencies.iter().copied()).collect();
    let sizes = postings.iter().map(|posting| i32::try_from(posting.ordinals.len()).unwrap_or(i32::MAX)).collect();
    (ordinals, frequencies, sizes)
}

/// The statement of [`Store::write_chunks`]; only the width of the vectors' table varies.
fn write_statement(width: i32) -> String {
    let kind = if width <= 2000 { "vector" } else { "halfvec" };
    format!(
        "WITH fence AS MATERIALIZED (
             SELECT id, store_id FROM documents
              WHERE id = $1 AND claim_token = $2 AND content_version = $3 AND status = 'processing' FOR SHARE
         ), new_chunks AS (
             INSERT INTO chunks (document_id, content_version, store_id, ordinal, content, heading_path, page_from,
                                 page_to, char_from, char_to, token_count, content_hash)
             SELECT fence.id, $3, fence.store_id, c.ordinal, c.content, c.heading_path, c.page_from, c.page_to,
                    c.char_from, c.char_to, c.token_count, c.content_hash
               FROM fence, unnest($4::int[], $5::text[], $6::text[], $7::int[], $8::int[], $9::int[], $10::int[],
                                  $11::int[], $12::bytea[])
                           c (ordinal, content, heading_path, page_from, page_to, char_from, char_to, token_count,
                              content_hash)
             ON CONFLICT (document_id, content_version, ordinal) DO NOTHING
             RETURNING id, store_id, ordinal
         ), vectors AS (
             INSERT INTO chunk_embeddings_{width} (chunk_id, store_id, embedding_revision_id, embedding)
             SELECT n.id, n.store_id, $14,
                    (($13::real[])[(n.ordinal - $15) * {width} + 1 : (n.ordinal - $15 + 1) * {width}])::{kind}({width})
               FROM new_chunks n
         ), segment AS (
             INSERT INTO posting_segments (store_id, document_id, content_version, first_ordinal, lengths, chunk_count,
                                           total_length)
             SELECT fence.store_id, fence.id, $3, $15, $16::int[], cardinality($16::int[]), $17 FROM fence
             ON CONFLICT (document_id, content_version, first_ordinal) DO NOTHING
             RETURNING id, store_id
         ), terms AS (
             INSERT INTO postings (store_id, term, segment_id, ordinals, frequencies)
             SELECT segment.store_id, t.term, segment.id, ($20::int[])[t.until - t.size + 1 : t.until],
                    ($21::smallint[])[t.until - t.size + 1 : t.until]
               FROM segment,
                    (SELECT term, size, sum(size) OVER (ORDER BY place)::int AS until
                       FROM unnest($18::text[], $19::int[]) WITH ORDINALITY u (term, size, place)) t
         )
         SELECT EXISTS (SELECT FROM fence)"
    )
}
