//! What a worker reads and writes for a claimed switch. Only the width of the vectors' table varies in a statement.

use domain::DocumentId;
use sqlx::AssertSqlSafe;

use super::{BareChunk, Switch, SwitchEnd, SwitchKey};
use crate::ingest::{IngestSettings, Paid};
use crate::{Store, StoreError};

impl Store {
    /// Counts how far a switch is and shows it. Returns whether the claim still held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn measure_embedding_switch(&self, switch: &Switch) -> Result<bool, StoreError> {
        let width = switch.settings.width;
        let statement = format!(
            "UPDATE embedding_switches w
                SET chunks_done = (
                        SELECT count(*)
                          FROM chunk_embeddings_{width} e
                               JOIN chunks c ON c.id = e.chunk_id
                               JOIN documents d ON d.id = c.document_id AND d.live_version = c.content_version
                         WHERE e.store_id = w.store_id AND e.embedding_revision_id = w.embedding_revision_id),
                    chunks_total = (
                        SELECT coalesce(sum(d.chunk_count), 0) FROM documents d
                         WHERE d.store_id = w.store_id AND d.live_version IS NOT NULL),
                    updated_at = clock_timestamp()
              WHERE w.store_id = $1 AND w.claim = $2"
        );
        let result = sqlx::query(AssertSqlSafe(statement))
            .bind(switch.key.store.0)
            .bind(switch.key.claim)
            .execute(self.pool())
            .await?;
        Ok(result.rows_affected() == 1)
    }

    /// Live chunks of the store that have no vector of the new model, of documents from `from` on, in order.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_bare_chunks(
        &self,
        switch: &Switch,
        from: DocumentId,
        limit: i64,
    ) -> Result<Vec<BareChunk>, StoreError> {
        type Row = (i64, i64, Option<String>, String, String, Vec<u8>);
        let statement = format!(
            "SELECT c.id, d.id, d.title, c.heading_path, c.content, c.content_hash
               FROM documents d JOIN chunks c ON c.document_id = d.id AND c.content_version = d.live_version
              WHERE d.store_id = $1 AND d.id >= $2
                AND NOT EXISTS (SELECT FROM chunk_embeddings_{} e
                                 WHERE e.chunk_id = c.id AND e.embedding_revision_id = $3)
              ORDER BY d.id, c.ordinal LIMIT $4",
            switch.settings.width
        );
        let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(statement))
            .bind(switch.key.store.0)
            .bind(from.0)
            .bind(switch.settings.revision.0)
            .bind(limit)
            .fetch_all(self.pool())
            .await?;
        Ok(rows
            .into_iter()
            .map(|(id, document, title, heading_path, content, content_hash)| BareChunk {
                id,
                document: DocumentId(document),
                title,
                heading_path,
                content,
                content_hash,
            })
            .collect())
    }

    /// Adds vectors of the new model to chunks that are still there. Returns whether the claim still held; if not, nothing
    /// was written.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn write_switch_vectors(
        &self,
        switch: &Switch,
        chunks: &[i64],
        vectors: &[Vec<f32>],
    ) -> Result<bool, StoreError> {
        let width = switch.settings.width;
        let kind = if width <= 2000 { "vector" } else { "halfvec" };
        let statement = format!(
            "WITH fence AS (
                 UPDATE embedding_switches
                    SET chunks_done = chunks_done + cardinality($4::bigint[]), retries = 0, retrying_since = NULL,
                        error_code = NULL, error_text = NULL, updated_at = clock_timestamp()
                  WHERE store_id = $1 AND claim = $2
                 RETURNING store_id, embedding_revision_id
             ), kept AS MATERIALIZED (
                 -- Locked, so that none goes before its vector is there; what is going is left out.
                 SELECT id FROM chunks WHERE id = ANY ($4) AND store_id = $1 ORDER BY id FOR KEY SHARE
             ), written AS (
                 INSERT INTO chunk_embeddings_{width} (chunk_id, store_id, embedding_revision_id, embedding)
                 SELECT kept.id, fence.store_id, fence.embedding_revision_id,
                        (($5::real[])[(asked.place - 1) * {width} + 1 : asked.place * {width}])::{kind}({width})
                   FROM fence, kept JOIN unnest($4::bigint[]) WITH ORDINALITY asked (id, place) USING (id)
                  WHERE fence.embedding_revision_id = $3
                 ON CONFLICT DO NOTHING
             )
             SELECT EXISTS (SELECT FROM fence)"
        );
        Ok(sqlx::query_scalar(AssertSqlSafe(statement))
            .bind(switch.key.store.0)
            .bind(switch.key.claim)
            .bind(switch.settings.revision.0)
            .bind(chunks)
            .bind(vectors.concat())
            .fetch_one(self.pool())
            .await?)
    }

    /// Remembers vectors the project has paid for, whatever became of the claim, and adds the price to the switch as long
    /// as the claim holds. Returns whether it held.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn memoise_switch_embeddings(
        &self,
        key: SwitchKey,
        settings: &IngestSettings,
        hashes: &[Vec<u8>],
        vectors: &[Vec<f32>],
        paid: Paid,
    ) -> Result<bool, StoreError> {
        let width = vectors.first().map_or(0, Vec::len);
        let result = sqlx::query!(
            "WITH memo AS (
                 INSERT INTO embedding_memo (project_id, embedding_revision_id, content_hash, embedding)
                 SELECT $1, $2, h.hash, ($4::real[])[(h.place - 1) * $5::int + 1 : h.place * $5::int]
                   FROM unnest($3::bytea[]) WITH ORDINALITY h (hash, place)
                 ON CONFLICT DO NOTHING
             )
             UPDATE embedding_switches
                SET embedded_tokens = embedded_tokens + $6, embedding_cost = embedding_cost + $7
              WHERE store_id = $8 AND claim = $9",
            settings.project.0,
            settings.revision.0,
            hashes,
            &vectors.concat(),
            i32::try_from(width).unwrap_or(0),
            paid.tokens,
            paid.cost,
            key.store.0,
            key.claim
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }

    /// Changes a store over to the new vectors if every live chunk has one: what a search finds changes in one statement,
    /// and nobody finds part of either. Uploads to the store end before or after it.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn finish_embedding_switch(&self, switch: &Switch) -> Result<SwitchEnd, StoreError> {
        let mut transaction = self.begin().await?;
        // Documents become live under this lock. In a statement of its own, so that the next one sees all that did.
        sqlx::query!("SELECT id FROM document_stores WHERE id = $1 FOR NO KEY UPDATE", switch.key.store.0)
            .fetch_optional(&mut transaction)
            .await?;
        let is_bare: bool = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT EXISTS (
                 SELECT FROM documents d JOIN chunks c ON c.document_id = d.id AND c.content_version = d.live_version
                  WHERE d.store_id = $1
                    AND NOT EXISTS (SELECT FROM chunk_embeddings_{} e
                                     WHERE e.chunk_id = c.id AND e.embedding_revision_id = $2))",
            switch.settings.width
        )))
        .bind(switch.key.store.0)
        .bind(switch.settings.revision.0)
        .fetch_one(&mut transaction)
        .await?;
        if is_bare {
            transaction.rollback().await?;
            return Ok(SwitchEnd::Incomplete);
        }
        let done = sqlx::query_scalar!(
            "WITH switch AS (
                 DELETE FROM embedding_switches WHERE store_id = $1 AND claim = $2 AND embedding_revision_id = $3
                 RETURNING store_id, connection_id, embedding_revision_id, width
             ), retired AS (
                 INSERT INTO retired_embeddings (store_id, embedding_revision_id, width)
                 SELECT s.id, s.embedding_revision_id, s.width
                   FROM document_stores s JOIN switch ON switch.store_id = s.id
                 ON CONFLICT (store_id, embedding_revision_id) DO UPDATE SET retired_at = excluded.retired_at
             ), changed AS (
                 UPDATE document_stores s
                    SET embedding_connection_id = switch.connection_id,
                        embedding_revision_id = switch.embedding_revision_id, width = switch.width,
                        revision = revision + 1, content_revision = content_revision + 1,
                        updated_at = clock_timestamp()
                   FROM switch WHERE s.id = switch.store_id
                 RETURNING s.id
             )
             SELECT append_config_change('store', id) FROM changed",
            switch.key.store.0,
            switch.key.claim,
            switch.settings.revision.0
        )
        .fetch_optional(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(if done.is_some() { SwitchEnd::Done } else { SwitchEnd::Lost })
    }
}
