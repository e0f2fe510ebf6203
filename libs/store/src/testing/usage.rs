//! What tests put into the log to be added up, and what it was added up to.

use domain::{ProjectId, RequestId};
use sqlx::{AssertSqlSafe, FromRow};

use super::TestDatabase;

/// A settled call for the log.
#[derive(Clone, Debug)]
pub struct LogRow {
    /// The call.
    pub request: RequestId,
    /// Days before now.
    pub days_ago: i32,
    /// The project and its name.
    pub project: (ProjectId, &'static str),
    /// The key.
    pub key: Option<i64>,
    /// The model that answered.
    pub model: Option<&'static str>,
    /// The status the client got.
    pub status: i32,
    /// Whether the charge is an estimate.
    pub estimated: bool,
    /// Tokens charged; as many are reported for the prompt.
    pub tokens: i64,
    /// Nano-USD charged.
    pub cost: i64,
    /// Tags.
    pub tags: serde_json::Value,
}

/// A row of `usage_rollups`, as far as tests look at it.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct UsageRow {
    /// Days before today (UTC).
    pub days_ago: i32,
    /// The project's name.
    pub project_name: Option<String>,
    /// The key.
    pub api_key_id: Option<i64>,
    /// The model.
    pub model: Option<String>,
    /// The tag's key; empty for the total.
    pub tag_key: String,
    /// Its value.
    pub tag_value: String,
    /// Calls.
    pub requests: i64,
    /// Those with a status of 400 and above.
    pub errors: i64,
    /// Those whose charge is an estimate.
    pub estimated: i64,
    /// Reported prompt tokens.
    pub prompt_tokens: i64,
    /// Tokens charged.
    pub charged_tokens: i64,
    /// Nano-USD charged.
    pub charged_cost: i64,
}

impl TestDatabase {
    /// Puts a call into the log, settled now.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn insert_log_row(&self, row: &LogRow) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        sqlx::query(
            "INSERT INTO request_logs (request_id, admitted_at, instance_id, project_id, project_name, api_key_id, operation,
                                       model, status, state, prompt_tokens, charged_requests, charged_tokens, charged_cost,
                                       tags)
             VALUES ($1, clock_timestamp() - make_interval(days => $2), gen_random_uuid(), $3, $4, $5, 'chat', $6, $7,
                     CASE WHEN $8 THEN 'estimated' ELSE 'final' END, $9, 1, $9, $10, $11)",
        )
        .bind(row.request.0)
        .bind(row.days_ago)
        .bind(row.project.0.0)
        .bind(row.project.1)
        .bind(row.key)
        .bind(row.model)
        .bind(row.status)
        .bind(row.estimated)
        .bind(row.tokens)
        .bind(row.cost)
        .bind(&row.tags)
        .execute(&pool)
        .await?;
        pool.close().await;
        Ok(())
    }

    /// The rollups of all projects, by day, project, tag, key and model.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn usage_rollups(&self) -> anyhow::Result<Vec<UsageRow>> {
        let pool = self.superuser_pool().await?;
        let rows = sqlx::query_as(
            "SELECT ((clock_timestamp() AT TIME ZONE 'UTC')::date - day)::int AS days_ago, project_name, api_key_id, model,
                    tag_key, tag_value, requests, errors, estimated, prompt_tokens, charged_tokens, charged_cost
               FROM usage_rollups
              ORDER BY day, project_id, tag_key COLLATE \"C\", tag_value COLLATE \"C\", api_key_id, model",
        )
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(rows)
    }

    /// Denials by tier, id and code, of all minutes together.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn denial_counts(&self) -> anyhow::Result<Vec<(i16, i64, String, i64)>> {
        let pool = self.superuser_pool().await?;
        let rows = sqlx::query_as(
            "SELECT tier, id, code, sum(denials)::bigint FROM denial_rollups GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        )
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(rows)
    }

    /// How many calls of a project were settled after the last one of another project.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn settled_after(&self, project: ProjectId, other: ProjectId) -> anyhow::Result<i64> {
        let pool = self.superuser_pool().await?;
        let later = sqlx::query_scalar(
            "SELECT count(*) FROM request_logs
              WHERE project_id = $1 AND settled_at > (SELECT max(settled_at) FROM request_logs WHERE project_id = $2)",
        )
        .bind(project.0)
        .bind(other.0)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(later)
    }

    /// Runs statements as a superuser.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn execute(&self, sql: impl Into<String>) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(&pool).await?;
        pool.close().await;
        Ok(())
    }
}
