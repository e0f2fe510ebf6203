//! Document stores for tests of what searches them.

use domain::{ConnectionId, DocumentId, ProjectId, StoreId};

use super::TestDatabase;

/// What the queue knows of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentFacts {
    /// Its state in the queue.
    pub status: String,
    /// Claims without a verdict.
    pub attempts: i32,
    /// Passing errors waited out.
    pub retries: i32,
    /// Claims altogether.
    pub claim_token: i64,
    /// Tokens paid for.
    pub embedded_tokens: i64,
    /// What they cost, in nano-USD.
    pub embedding_cost: i64,
    /// Chunks of all its versions.
    pub chunks: i64,
}

/// What stores hold, added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct IngestTotals {
    /// Documents that wait for a worker.
    pub pending: i64,
    /// Documents that wait for something else.
    pub delayed: i64,
    /// Documents that are claimed.
    pub processing: i64,
    /// Documents that can be found.
    pub ready: i64,
    /// Documents that failed.
    pub failed: i64,
    /// Their claims without a verdict.
    pub attempts: i64,
    /// Passing errors they wait out.
    pub retries: i64,
    /// How often a version was made live.
    pub finishes: i64,
    /// Chunks of all versions.
    pub chunks: i64,
    /// Vectors.
    pub vectors: i64,
    /// Segments of postings.
    pub segments: i64,
}

impl TestDatabase {
    /// A store of a project, which its calls search from now on, for vectors of that width.
    ///
    /// # Errors
    /// When the project has a store.
    pub async fn insert_document_store(
        &self,
        project: ProjectId,
        embedding: ConnectionId,
        width: i32,
    ) -> anyhow::Result<StoreId> {
        let pool = self.superuser_pool().await?;
        sqlx::query("SELECT ensure_vector_table($1)").bind(width).execute(&pool).await?;
        let id: i64 = sqlx::query_scalar(
            "WITH revision AS (INSERT INTO embedding_revisions (connection_id, base_url, model_name, width)
                               SELECT id, base_url, model_name, $3 FROM model_connections WHERE id = $2 RETURNING id)
             INSERT INTO document_stores (project_id, name, embedding_connection_id, embedding_revision_id, width)
             SELECT $1, 'documents', $2, revision.id, $3 FROM revision RETURNING id",
        )
        .bind(project.0)
        .bind(embedding.0)
        .bind(width)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        self.change_project(project, &format!("store_id = {id}")).await?;
        Ok(StoreId(id))
    }

    /// A document that waits to be claimed.
    ///
    /// # Errors
    /// When there is no such store.
    pub async fn insert_document(&self, store: StoreId, file_name: &str) -> anyhow::Result<DocumentId> {
        let pool = self.superuser_pool().await?;
        let id: i64 = sqlx::query_scalar(
            "WITH blob AS (INSERT INTO blobs (sha256, size) VALUES (sha256(gen_random_uuid()::text::bytea), 1) RETURNING id)
             INSERT INTO documents (store_id, blob_id, size, file_name, media_type)
             SELECT $1, blob.id, 1, $2, 'text/plain' FROM blob RETURNING id",
        )
        .bind(store.0)
        .bind(file_name)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(DocumentId(id))
    }

    /// Leaves a document as a worker does that dies after a finish: with one chunk of the version before.
    ///
    /// # Errors
    /// When there is no such document.
    pub async fn leave_old_version(&self, document: DocumentId) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        sqlx::query(
            "WITH finished AS (
                 UPDATE documents SET content_version = content_version + 1, live_version = content_version + 1,
                                      status = 'ready'
                  WHERE id = $1 RETURNING id, store_id, content_version
             )
             INSERT INTO chunks (document_id, content_version, store_id, ordinal, content, char_from, char_to,
                                 token_count, content_hash)
             SELECT id, content_version - 1, store_id, 0, 'old', 0, 3, 1, '' FROM finished",
        )
        .bind(document.0)
        .execute(&pool)
        .await?;
        pool.close().await;
        Ok(())
    }

    /// Reads what the queue knows of a document.
    ///
    /// # Errors
    /// When there is no such document.
    pub async fn document_facts(&self, document: DocumentId) -> anyhow::Result<DocumentFacts> {
        let pool = self.superuser_pool().await?;
        let (status, attempts, retries, claim_token, embedded_tokens, embedding_cost, chunks) = sqlx::query_as(
            "SELECT status, attempts, retries, claim_token, embedded_tokens, embedding_cost,
                    (SELECT count(*) FROM chunks WHERE document_id = d.id)
               FROM documents d WHERE id = $1",
        )
        .bind(document.0)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(DocumentFacts { status, attempts, retries, claim_token, embedded_tokens, embedding_cost, chunks })
    }

    /// Adds up what some stores hold, whose vectors have 384 dimensions.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn ingest_totals(&self, stores: &[StoreId]) -> anyhow::Result<IngestTotals> {
        let pool = self.superuser_pool().await?;
        let totals = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
                    count(*) FILTER (WHERE status = 'delayed') AS delayed,
                    count(*) FILTER (WHERE status = 'processing') AS processing,
                    count(*) FILTER (WHERE status = 'ready') AS ready,
                    count(*) FILTER (WHERE status = 'failed') AS failed,
                    coalesce(sum(attempts), 0) AS attempts, coalesce(sum(retries), 0) AS retries,
                    (SELECT coalesce(sum(content_revision), 0)::bigint FROM document_stores WHERE id = ANY ($1))
                        AS finishes,
                    (SELECT count(*) FROM chunks WHERE store_id = ANY ($1)) AS chunks,
                    (SELECT count(*) FROM chunk_embeddings_384 WHERE store_id = ANY ($1)) AS vectors,
                    (SELECT count(*) FROM posting_segments WHERE store_id = ANY ($1)) AS segments
               FROM documents WHERE store_id = ANY ($1)",
        )
        .bind(ids(stores))
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(totals)
    }

    /// How many seconds a document waits yet.
    ///
    /// # Errors
    /// When there is no such document.
    pub async fn seconds_until_due(&self, document: DocumentId) -> anyhow::Result<i64> {
        let pool = self.superuser_pool().await?;
        let due = "SELECT floor(extract(epoch FROM run_at - clock_timestamp()))::bigint FROM documents WHERE id = $1";
        let seconds = sqlx::query_scalar(due).bind(document.0).fetch_one(&pool).await?;
        pool.close().await;
        Ok(seconds)
    }

    /// More stores like one, of the same project.
    ///
    /// # Errors
    /// When there is no such store.
    pub async fn insert_sibling_stores(&self, store: StoreId, count: i32) -> anyhow::Result<Vec<StoreId>> {
        let pool = self.superuser_pool().await?;
        let stores: Vec<i64> = sqlx::query_scalar(
            "INSERT INTO document_stores (project_id, name, embedding_connection_id, embedding_revision_id, width)
             SELECT project_id, name || ' ' || n, embedding_connection_id, embedding_revision_id, width
               FROM document_stores, generate_series(1, $2) n WHERE id = $1 RETURNING id",
        )
        .bind(store.0)
        .bind(count)
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(stores.into_iter().map(StoreId).collect())
    }

    /// Documents with the bytes of one, `count` in each store, in a state.
    ///
    /// # Errors
    /// When there is no such document.
    pub async fn copy_document(
        &self,
        document: DocumentId,
        stores: &[StoreId],
        count: i32,
        status: &str,
    ) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        sqlx::query(
            "INSERT INTO documents (store_id, blob_id, size, file_name, media_type, status)
             SELECT store.id, d.blob_id, d.size, d.file_name, d.media_type, $4
               FROM documents d, generate_series(1, $3) n, unnest($2::bigint[]) store (id) WHERE d.id = $1",
        )
        .bind(document.0)
        .bind(ids(stores))
        .bind(count)
        .bind(status)
        .execute(&pool)
        .await?;
        pool.close().await;
        Ok(())
    }

    /// Has the table of documents vacuumed and its statistics taken.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn vacuum_documents(&self) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        sqlx::raw_sql("VACUUM ANALYZE documents").execute(&pool).await?;
        pool.close().await;
        Ok(())
    }

    /// Says something of a document, as its uploader may.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn set_metadata(&self, document: DocumentId, metadata: &serde_json::Value) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        sqlx::query("UPDATE documents SET metadata = $2 WHERE id = $1")
            .bind(document.0)
            .bind(metadata)
            .execute(&pool)
            .await?;
        pool.close().await;
        Ok(())
    }

    /// The documents of a store.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn document_ids(&self, store: StoreId) -> anyhow::Result<Vec<DocumentId>> {
        let pool = self.superuser_pool().await?;
        let ids: Vec<i64> = sqlx::query_scalar("SELECT id FROM documents WHERE store_id = $1 ORDER BY id")
            .bind(store.0)
            .fetch_all(&pool)
            .await?;
        pool.close().await;
        Ok(ids.into_iter().map(DocumentId).collect())
    }

    /// How many documents of a store were ready before the last of some others was.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn count_ready_before(&self, others: &[StoreId], store: StoreId) -> anyhow::Result<i64> {
        let pool = self.superuser_pool().await?;
        let before = "SELECT count(*) FROM documents
                       WHERE store_id = $2
                         AND ready_at < (SELECT max(ready_at) FROM documents WHERE store_id = ANY ($1))";
        let count = sqlx::query_scalar(before).bind(ids(others)).bind(store.0).fetch_one(&pool).await?;
        pool.close().await;
        Ok(count)
    }
}

fn ids(stores: &[StoreId]) -> Vec<i64> {
    stores.iter().map(|store| store.0).collect()
}
