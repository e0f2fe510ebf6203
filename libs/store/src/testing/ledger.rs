//! What tests ask of the ledger.

use domain::ProjectId;

use super::TestDatabase;

/// Sums of one project's tier, and of its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Reads the totals of a project.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn tier_totals(&self, project: ProjectId) -> anyhow::Result<TierTotals> {
        let pool = self.superuser_pool().await?;
        let row: (i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT coalesce(sum(open_calls), 0)::bigint, coalesce(sum(day_requests_used), 0)::bigint,
                    coalesce(sum(day_tokens_used + day_tokens_excess), 0)::bigint,
                    coalesce(sum(day_tokens_held), 0)::bigint,
                    coalesce(sum(day_cost_used + day_cost_excess), 0)::bigint
               FROM tier_state WHERE tier = 1 AND id = $1",
        )
        .bind(project.0)
        .fetch_one(&pool)
        .await?;
        let log: (i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT coalesce(sum(charged_requests), 0)::bigint, coalesce(sum(charged_tokens), 0)::bigint,
                    coalesce(sum(charged_cost), 0)::bigint, count(*),
                    (SELECT count(*) FROM requests_open WHERE project_id = $1)
               FROM request_logs WHERE project_id = $1",
        )
        .bind(project.0)
        .fetch_one(&pool)
        .await?;
        pool.close().await;
        Ok(TierTotals {
            open_calls: row.0,
            day_requests: row.1,
            day_tokens: row.2,
            day_tokens_held: row.3,
            day_cost: row.4,
            logged_requests: log.0,
            logged_tokens: log.1,
            logged_cost: log.2,
            log_rows: log.3,
            open_rows: log.4,
        })
    }
}
