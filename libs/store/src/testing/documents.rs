//! Document stores for tests of what searches them.

use domain::{ConnectionId, DocumentId, ProjectId, StoreId};

use super::TestDatabase;

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
}
