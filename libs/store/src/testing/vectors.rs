//! Where the vectors of a store are, for tests that move them.

use domain::StoreId;
use sqlx::{AssertSqlSafe, PgPool};

use super::TestDatabase;

/// Looks at the vectors of one store, again and again.
pub struct VectorWatch {
    pool: PgPool,
    store: StoreId,
    width: i32,
}

impl TestDatabase {
    /// Looks at the vectors of a store from now on.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn watch_vectors(&self, store: StoreId, width: i32) -> anyhow::Result<VectorWatch> {
        Ok(VectorWatch { pool: self.superuser_pool().await?, store, width })
    }
}

impl VectorWatch {
    /// How many of the store's live chunks do not have exactly one vector, all tables together, in one snapshot.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn misplaced(&self) -> anyhow::Result<i64> {
        let mut snapshot = self.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
        let own: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT FROM vector_tables WHERE store_id = $1 AND width = $2)")
                .bind(self.store.0)
                .bind(self.width)
                .fetch_one(&mut *snapshot)
                .await?;
        let own = if own {
            format!("UNION ALL SELECT chunk_id FROM chunk_embeddings_{}_s{}", self.width, self.store.0)
        } else {
            String::new()
        };
        let statement = format!(
            "SELECT count(*) FROM (
                 SELECT FROM chunks c
                        JOIN documents d ON d.id = c.document_id AND d.live_version = c.content_version
                        LEFT JOIN (SELECT chunk_id FROM chunk_embeddings_{} {own}) e ON e.chunk_id = c.id
                  WHERE c.store_id = $1 GROUP BY c.id HAVING count(e.chunk_id) <> 1) misplaced",
            self.width
        );
        let misplaced =
            sqlx::query_scalar(AssertSqlSafe(statement)).bind(self.store.0).fetch_one(&mut *snapshot).await?;
        snapshot.commit().await?;
        Ok(misplaced)
    }

    /// Ends the sessions that are at a step of a move. Returns how many.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn end_steps(&self) -> anyhow::Result<usize> {
        let ended: Vec<bool> = sqlx::query_scalar(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND usename = 'ragmux_backend' AND state <> 'idle'
                AND (query LIKE '%vector_table%' OR query LIKE '%maintenance_work_mem%')",
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(ended.into_iter().filter(|ended| *ended).count())
    }
}
