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
    /// Claims altogether.
    pub claim_token: i64,
    /// Tokens paid for.
    pub embedded_tokens: i64,
    /// What they cost, in nano-USD.
    pub embedding_cost: i64,
    /// Chunks of all its versions.
    pub chunks: i64,
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
        let (status, attempts, claim_token, embedded_tokens, embedding_cost, chunks) = sqlx::query_as(
            "SELECT status, attempts, claim_token, embedded_tokens, embedding_cost,
                    (SELECT count(*) FROM chunks WHERE document_id = d.id)
               FROM documents d WHERE id = $1",
        )
        .bind(document.0)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(DocumentFacts { status, attempts, claim_token, embedded_tokens, embedding_cost, chunks })
    }
}
