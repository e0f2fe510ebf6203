//! What must be true of the ledger when no call is in flight.

use super::TestDatabase;

impl TestDatabase {
    /// What is not as it must be at rest, one sentence each: every window of every tier holds nothing, and what it has used
    /// and exceeded is what the log charged; there is no open row, and no call twice in the log.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn ledger_faults(&self) -> anyhow::Result<Vec<String>> {
        let pool = self.superuser_pool().await?;
        let faults = sqlx::query_scalar(
            "WITH held AS (
                SELECT format('tier %s %s holds %s calls, %s requests, %s tokens, %s nano-USD', tier, id, open_calls,
                              day_requests_held, day_tokens_held, day_cost_held) AS fault
                  FROM tier_state
                 WHERE (open_calls, minute_requests_held, minute_tokens_held, minute_cost_held, day_requests_held,
                        day_tokens_held, day_cost_held, month_requests_held, month_tokens_held, month_cost_held)
                       <> (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            ), used AS (
                SELECT w.kind, s.tier, s.id, w.requests, w.tokens, w.cost
                  FROM tier_state s CROSS JOIN LATERAL (VALUES
                       ('minute', minute_requests_used, minute_tokens_used + minute_tokens_excess,
                        minute_cost_used + minute_cost_excess),
                       ('day', day_requests_used, day_tokens_used + day_tokens_excess, day_cost_used + day_cost_excess),
                       ('month', month_requests_used, month_tokens_used + month_tokens_excess,
                        month_cost_used + month_cost_excess)) w (kind, requests, tokens, cost)
                UNION ALL
                SELECT window_kind, tier, id, requests_used, tokens_used + tokens_excess, cost_used + cost_excess
                  FROM usage_counters
            ), charged AS (
                SELECT w.kind, t.tier, t.id, l.charged_requests, l.charged_tokens, l.charged_cost
                  FROM request_logs l
                       LEFT JOIN api_keys k ON k.id = l.api_key_id
                       CROSS JOIN LATERAL (VALUES (1, l.project_id), (2, l.api_key_id)) t (tier, id)
                       CROSS JOIN (VALUES ('minute'), ('day'), ('month')) w (kind)
                 -- A project's own key is no tier, and work of our own is in no minute.
                 WHERE (t.tier = 1 OR k.kind = 'gateway') AND (w.kind <> 'minute' OR l.api_key_id IS NOT NULL)
            ), counters AS (
                SELECT kind, tier, id, sum(requests) AS requests, sum(tokens) AS tokens, sum(cost) AS cost
                  FROM used GROUP BY 1, 2, 3
            ), logs AS (
                SELECT kind, tier, id, sum(charged_requests) AS requests, sum(charged_tokens) AS tokens,
                       sum(charged_cost) AS cost
                  FROM charged GROUP BY 1, 2, 3
            )
            SELECT fault FROM held
            UNION ALL
            SELECT format('the %ss of tier %s %s have used %s requests, %s tokens, %s nano-USD, the log says %s, %s, %s',
                          kind, tier, id, c.requests, c.tokens, c.cost, l.requests, l.tokens, l.cost)
              FROM counters c FULL JOIN logs l USING (kind, tier, id)
             WHERE (coalesce(c.requests, 0), coalesce(c.tokens, 0), coalesce(c.cost, 0))
                   <> (coalesce(l.requests, 0), coalesce(l.tokens, 0), coalesce(l.cost, 0))
            UNION ALL
            SELECT format('call %s of project %s is open since %s', request_id, project_id, admitted_at)
              FROM requests_open
            UNION ALL
            SELECT format('call %s is in the log %s times', request_id, count(*))
              FROM request_logs GROUP BY request_id HAVING count(*) > 1",
        )
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(faults)
    }

    /// The process ids of the sessions in which edges admit and settle calls.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn ledger_sessions(&self) -> anyhow::Result<Vec<i32>> {
        let pool = self.superuser_pool().await?;
        let pids = sqlx::query_scalar(
            "SELECT pid FROM pg_stat_activity
              WHERE datname = current_database() AND usename = 'ragmux_edge'
                AND (query LIKE 'SELECT * FROM admit\\_v%' OR query LIKE 'SELECT * FROM settle\\_v%')",
        )
        .fetch_all(&pool)
        .await?;
        pool.close().await;
        Ok(pids)
    }

    /// The ledger's epoch, which a crash of the server takes away.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn ledger_epoch(&self) -> anyhow::Result<Option<String>> {
        let pool = self.superuser_pool().await?;
        let epoch = sqlx::query_scalar("SELECT epoch::text FROM ledger_epoch").fetch_optional(&pool).await?;
        pool.close().await;
        Ok(epoch)
    }

    /// Does to the ledger's epoch what a crash of the server does.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn lose_ledger_epoch(&self) -> anyhow::Result<()> {
        let pool = self.superuser_pool().await?;
        sqlx::raw_sql("TRUNCATE ledger_epoch").execute(&pool).await?;
        pool.close().await;
        Ok(())
    }
}
