//! What callers may read of their own usage: the running windows of their tiers, and single calls.

use domain::{ApiKeyId, NanoUsd, ProjectId, RequestId, Tier, Window};
use time::OffsetDateTime;

use crate::{Store, StoreError};

/// A tier and its running windows.
#[derive(Clone, Debug)]
pub struct TierUsage {
    /// Whether it is the project or the key.
    pub tier: Tier,
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// The IANA zone of its days and months.
    pub time_zone: String,
    /// Calls in flight.
    pub open_calls: i64,
    /// How many there may be; 0 for any number.
    pub concurrent_requests: i64,
    /// Minute, day and month.
    pub windows: Vec<WindowUsage>,
}

/// One window.
#[derive(Clone, Debug)]
pub struct WindowUsage {
    /// Which.
    pub window: Window,
    /// Its start.
    pub starts_at: OffsetDateTime,
    /// Its end, which is the next one's start.
    pub ends_at: OffsetDateTime,
    /// Requests.
    pub requests: Amounts,
    /// Tokens.
    pub tokens: Amounts,
    /// Nano-USD.
    pub cost: Amounts,
}

/// What a window has of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// The cap; 0 for none.
    pub limit: i64,
    /// Charged within what was held.
    pub used: i64,
    /// Charged beyond it.
    pub excess: i64,
    /// Held by calls in flight.
    pub held: i64,
}

/// What the ledger has of one call.
#[derive(Clone, Debug)]
pub struct LedgerEntry {
    /// `open`, `final` or `estimated`.
    pub state: String,
    /// When it was admitted.
    pub admitted_at: OffsetDateTime,
    /// When it was settled; `None` while it is open.
    pub settled_at: Option<OffsetDateTime>,
    /// `chat`, `embeddings`, `retrieve` or `ingest`.
    pub operation: Option<String>,
    /// The public model name.
    pub route: Option<String>,
    /// The model that answered or is to answer.
    pub model: Option<String>,
    /// The status the client got.
    pub status: Option<i32>,
    /// Why it failed.
    pub error_code: Option<String>,
    /// Whether it is streamed.
    pub streamed: bool,
    /// What an open call holds: tokens and cost.
    pub held: Option<(i64, NanoUsd)>,
    /// Prompt tokens as the provider reported them.
    pub prompt_tokens: Option<i64>,
    /// Completion tokens, likewise.
    pub completion_tokens: Option<i64>,
    /// Prompt tokens from the provider's cache, likewise.
    pub cached_tokens: Option<i64>,
    /// Prompt tokens written to the provider's cache, likewise.
    pub cache_write_tokens: Option<i64>,
    /// Completion tokens spent on reasoning, likewise.
    pub reasoning_tokens: Option<i64>,
    /// What the reported usage costs.
    pub reported_cost: Option<NanoUsd>,
    /// What a settled call is charged.
    pub charged: Option<Charged>,
    /// `builtin`, `user` or `none`.
    pub cost_source: Option<String>,
    /// Tokens that a cached answer saved.
    pub saved_tokens: Option<i64>,
    /// From acceptance to the end.
    pub latency_ms: Option<i64>,
    /// From acceptance to the first byte of the answer.
    pub first_byte_ms: Option<i64>,
    /// Upstream attempts.
    pub attempts: Option<i32>,
    /// Passages that were added.
    pub rag_hits: Option<i32>,
    /// The client's tags.
    pub tags: Option<serde_json::Value>,
}

/// A charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// 1, or 0 when the call does not count.
    pub requests: i64,
    /// Tokens.
    pub tokens: i64,
    /// Cost.
    pub cost: NanoUsd,
}

impl Store {
    /// The running windows of a project and, if the key is a person's, of the key. Empty when there is no such project.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_tier_usage(&self, project: ProjectId, key: ApiKeyId) -> Result<Vec<TierUsage>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT tier AS "tier!", id AS "id!", name AS "name!", time_zone AS "time_zone!",
                      open_calls AS "open_calls!", concurrent_requests AS "concurrent_requests!",
                      window_kind AS "window_kind!", starts_at AS "starts_at!", ends_at AS "ends_at!",
                      request_limit AS "request_limit!", requests_used AS "requests_used!",
                      requests_held AS "requests_held!", token_limit AS "token_limit!", tokens_used AS "tokens_used!",
                      tokens_excess AS "tokens_excess!", tokens_held AS "tokens_held!", cost_limit AS "cost_limit!",
                      cost_used AS "cost_used!", cost_excess AS "cost_excess!", cost_held AS "cost_held!"
                 FROM usage_windows_v1($1, $2)"#,
            project.0,
            key.0
        )
        .fetch_all(self.pool())
        .await?;
        let mut tiers: Vec<TierUsage> = Vec::new();
        for row in rows {
            let tier = if row.tier == 1 { Tier::Project } else { Tier::Key };
            if tiers.last().is_none_or(|last| last.tier != tier) {
                tiers.push(TierUsage {
                    tier,
                    id: row.id,
                    name: row.name,
                    time_zone: row.time_zone,
                    open_calls: row.open_calls,
                    concurrent_requests: row.concurrent_requests,
                    windows: Vec::with_capacity(3),
                });
            }
            let window = WindowUsage {
                window: match row.window_kind.as_str() {
                    "minute" => Window::Minute,
                    "day" => Window::Day,
                    _ => Window::Month,
                },
                starts_at: row.starts_at,
                ends_at: row.ends_at,
                requests: Amounts {
                    limit: row.request_limit,
                    used: row.requests_used,
                    excess: 0,
                    held: row.requests_held,
                },
                tokens: Amounts {
                    limit: row.token_limit,
                    used: row.tokens_used,
                    excess: row.tokens_excess,
                    held: row.tokens_held,
                },
                cost: Amounts {
                    limit: row.cost_limit,
                    used: row.cost_used,
                    excess: row.cost_excess,
                    held: row.cost_held,
                },
            };
            if let Some(last) = tiers.last_mut() {
                last.windows.push(window);
            }
        }
        Ok(tiers)
    }

    /// One call of a project, or of one of its keys only.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_ledger_entry(
        &self,
        request: RequestId,
        project: ProjectId,
        key: Option<ApiKeyId>,
    ) -> Result<Option<LedgerEntry>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT state AS "state!", admitted_at AS "admitted_at!", settled_at, operation, route, model, status,
                      error_code, streamed AS "streamed!", held_tokens, held_cost, prompt_tokens, completion_tokens,
                      cached_tokens, cache_write_tokens, reasoning_tokens, reported_cost, charged_requests,
                      charged_tokens, charged_cost, cost_source, saved_tokens, latency_ms, first_byte_ms, attempts,
                      rag_hits, tags
                 FROM find_ledger_entry_v1($1, $2, $3)"#,
            request.0,
            project.0,
            key.map(|key| key.0)
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let charged = match (row.charged_requests, row.charged_tokens, row.charged_cost) {
            (Some(requests), Some(tokens), Some(cost)) => Some(Charged { requests, tokens, cost: NanoUsd(cost) }),
            _ => None,
        };
        Ok(Some(LedgerEntry {
            state: row.state,
            admitted_at: row.admitted_at,
            settled_at: row.settled_at,
            operation: row.operation,
            route: row.route,
            model: row.model,
            status: row.status,
            error_code: row.error_code,
            streamed: row.streamed,
            held: row.held_tokens.zip(row.held_cost.map(NanoUsd)),
            prompt_tokens: row.prompt_tokens,
            completion_tokens: row.completion_tokens,
            cached_tokens: row.cached_tokens,
            cache_write_tokens: row.cache_write_tokens,
            reasoning_tokens: row.reasoning_tokens,
            reported_cost: row.reported_cost.map(NanoUsd),
            charged,
            cost_source: row.cost_source,
            saved_tokens: row.saved_tokens,
            latency_ms: row.latency_ms,
            first_byte_ms: row.first_byte_ms,
            attempts: row.attempts,
            rag_hits: row.rag_hits,
            tags: row.tags,
        }))
    }
}
