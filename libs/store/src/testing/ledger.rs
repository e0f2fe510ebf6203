//! What tests ask of the ledger.

use domain::{ApiKey, ApiKeyId, KeyKind, ProjectId};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};

use super::TestDatabase;
use crate::Topic;

/// A project's row or a table, held by somebody else.
pub struct ProjectLock {
    transaction: Transaction<'static, Postgres>,
    _pool: PgPool,
}

impl ProjectLock {
    /// Lets go.
    ///
    /// # Errors
    /// When the connection was lost.
    pub async fn release(self) -> anyhow::Result<()> {
        Ok(self.transaction.rollback().await?)
    }
}

/// Sums of one project's tier, and of its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct TierTotals {
    /// Calls in flight.
    pub open_calls: i64,
    /// Requests used in the running day.
    pub day_requests: i64,
    /// Tokens used and in excess in the running day.
    pub day_tokens: i64,
    /// Tokens held in the running day.
    pub day_tokens_held: i64,
    /// Cost used and in excess in the running day.
    pub day_cost: i64,
    /// Requests charged by the log.
    pub logged_requests: i64,
    /// Tokens charged by the log.
    pub logged_tokens: i64,
    /// Cost charged by the log.
    pub logged_cost: i64,
    /// Open rows.
    pub open_rows: i64,
    /// Log rows.
    pub log_rows: i64,
}

impl TestDatabase {
    /// A project with these limits (`column = value, …`).
    ///
    /// # Errors
    /// When the name is taken or a limit is not allowed.
    pub async fn insert_project(&self, name: &str, limits: &str) -> anyhow::Result<ProjectId> {
        let pool = self.superuser_pool().await?;
        let id: i64 = sqlx::query_scalar("INSERT INTO projects (name) VALUES ($1) RETURNING id")
            .bind(name)
            .fetch_one(&pool)
            .await?;
        if !limits.is_empty() {
            let sql = format!("UPDATE projects SET {limits} WHERE id = {id}");
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await?;
        }
        pool.close().await;
        Ok(ProjectId(id))
    }

    /// A key of a project. Its secret is the second part.
    ///
    /// # Errors
    /// When the project has one already.
    pub async fn insert_project_key(&self, project: ProjectId) -> anyhow::Result<(ApiKeyId, ApiKey)> {
        let key = ApiKey::generate(KeyKind::Project);
        let pool = self.superuser_pool().await?;
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO api_keys (kind, name, key_hash, key_prefix, project_id) VALUES ('project', 'key', $1, $2, $3)
             RETURNING id",
        )
        .bind(key.hash().as_bytes().as_slice())
        .bind(key.display_prefix())
        .bind(project.0)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok((ApiKeyId(id), key))
    }

    /// Holds a project's row until the lock is released or dropped, as a slow writer would.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn lock_project(&self, project: ProjectId) -> anyhow::Result<ProjectLock> {
        self.lock_projects(&[project]).await
    }

    /// The same for several.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn lock_projects(&self, projects: &[ProjectId]) -> anyhow::Result<ProjectLock> {
        let pool = self.superuser_pool().await?;
        let mut transaction = pool.begin().await?;
        let ids: Vec<i64> = projects.iter().map(|project| project.0).collect();
        sqlx::query("SELECT FROM projects WHERE id = ANY ($1) FOR UPDATE").bind(ids).execute(&mut *transaction).await?;
        Ok(ProjectLock { transaction, _pool: pool })
    }

    /// Holds a table, so that nobody else reads or writes it until the lock is released or dropped.
    ///
    /// # Errors
    /// When there is no such table.
    pub async fn lock_table(&self, table: &'static str) -> anyhow::Result<ProjectLock> {
        let pool = self.superuser_pool().await?;
        let mut transaction = pool.begin().await?;
        sqlx::query(AssertSqlSafe(format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")))
            .execute(&mut *transaction)
            .await?;
        Ok(ProjectLock { transaction, _pool: pool })
    }

    /// Whether any session of this database waits for a lock.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn has_lock_waiters(&self) -> anyhow::Result<bool> {
        let pool = self.superuser_pool().await?;
        let waits = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
                             WHERE datname = current_database() AND wait_event_type = 'Lock')",
        )
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(waits)
    }

    /// How many sessions of this database listen to a topic, those included whose client is not heard of any more.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn listening_sessions(&self, topic: Topic) -> anyhow::Result<i64> {
        let pool = self.superuser_pool().await?;
        let listening = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND query LIKE 'LISTEN %' || $1 || '%'",
        )
        .bind(topic.as_str())
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(listening)
    }

    /// What the ledger knows of a project's calls in flight beside their holds, oldest first.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn open_details(&self, project: ProjectId) -> anyhow::Result<Vec<serde_json::Value>> {
        let pool = self.superuser_pool().await?;
        let details = sqlx::query_scalar(
            "SELECT details FROM requests_open WHERE project_id = $1 ORDER BY admitted_at, request_id",
        )
        .bind(project.0)
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(details)
    }

    /// How many of a project's calls in flight were admitted at one moment, moment by moment.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn admitted_together(&self, project: ProjectId) -> anyhow::Result<Vec<i64>> {
        let pool = self.superuser_pool().await?;
        let calls = sqlx::query_scalar(
            "SELECT count(*) FROM requests_open WHERE project_id = $1 GROUP BY admitted_at ORDER BY admitted_at",
        )
        .bind(project.0)
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(calls)
    }

    /// The ids of a project's calls in flight, likewise.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn open_ids(&self, project: ProjectId) -> anyhow::Result<Vec<String>> {
        let pool = self.superuser_pool().await?;
        let ids = sqlx::query_scalar(
            "SELECT request_id::text FROM requests_open WHERE project_id = $1 ORDER BY admitted_at, request_id",
        )
        .bind(project.0)
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(ids)
    }

    /// The running rows of all tiers as JSON, column by column.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn tier_rows(&self) -> anyhow::Result<Vec<serde_json::Value>> {
        let pool = self.superuser_pool().await?;
        let rows = sqlx::query_scalar("SELECT to_jsonb(s) FROM tier_state s ORDER BY tier, id, generation")
            .fetch_all(&pool)
            .await?;
        pool.close().await;
        Ok(rows)
    }

    /// Reads the totals of a project.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn tier_totals(&self, project: ProjectId) -> anyhow::Result<TierTotals> {
        let pool = self.superuser_pool().await?;
        // One statement, so one snapshot: read one after the other, a settlement in between would show its call in the
        // tiers and no longer among the open rows.
        let totals = sqlx::query_as(
            "SELECT tier.*, logged.*, (SELECT count(*) FROM requests_open WHERE project_id = $1) AS open_rows
               FROM (SELECT coalesce(sum(open_calls), 0)::bigint AS open_calls,
                            coalesce(sum(day_requests_used), 0)::bigint AS day_requests,
                            coalesce(sum(day_tokens_used + day_tokens_excess), 0)::bigint AS day_tokens,
                            coalesce(sum(day_tokens_held), 0)::bigint AS day_tokens_held,
                            coalesce(sum(day_cost_used + day_cost_excess), 0)::bigint AS day_cost
                       FROM tier_state WHERE tier = 1 AND id = $1) tier,
                    (SELECT coalesce(sum(charged_requests), 0)::bigint AS logged_requests,
                            coalesce(sum(charged_tokens), 0)::bigint AS logged_tokens,
                            coalesce(sum(charged_cost), 0)::bigint AS logged_cost, count(*) AS log_rows
                       FROM request_logs WHERE project_id = $1) logged",
        )
        .bind(project.0)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(totals)
    }
}
