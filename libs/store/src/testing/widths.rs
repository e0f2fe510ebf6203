//! The tables of vectors, as tests arrange and count them.

use domain::StoreId;
use sqlx::AssertSqlSafe;

use super::TestDatabase;

impl TestDatabase {
    /// Drops the tables of these widths, as if no store had ever had vectors so wide.
    ///
    /// # Errors
    /// When there is none.
    pub async fn drop_vector_tables(&self, widths: &[i32]) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        for width in widths {
            let drop = format!("DROP TABLE chunk_embeddings_{width}");
            sqlx::raw_sql(AssertSqlSafe(drop)).execute(&pool).await?;
        }
        pool.close().await;
        Ok(())
    }

    /// Live chunks of a store, and how many of them have exactly one vector of the store's model.
    ///
    /// # Errors
    /// When there is no table of its width.
    pub async fn live_chunks(&self, store: StoreId) -> anyhow::Result<(i64, i64)> {
        let pool = self.superuser_pool().await?;
        let width: i32 = sqlx::query_scalar("SELECT width FROM document_stores WHERE id = $1")
            .bind(store.0)
            .fetch_one(&pool)
            .await?;
        let counted = format!(
            "SELECT count(*), count(*) FILTER (WHERE
                        (SELECT count(*) FROM chunk_embeddings_{width} e
                          WHERE e.chunk_id = c.id AND e.embedding_revision_id = s.embedding_revision_id) = 1)
               FROM document_stores s
                    JOIN documents d ON d.store_id = s.id
                    JOIN chunks c ON c.document_id = d.id AND c.content_version = d.live_version
              WHERE s.id = $1"
        );
        let counts = sqlx::query_as(AssertSqlSafe(counted)).bind(store.0).fetch_one(&pool).await?;
        pool.close().await;
        Ok(counts)
    }
}
