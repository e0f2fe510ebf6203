//! `GET /v1/usage/{request_id}`.

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use domain::{NanoUsd, RequestId};
use http::HeaderMap;
use serde::Serialize;
use serde_json::value::RawValue;
use store::usage::LedgerEntry;
use time::OffsetDateTime;

use super::{asked, usd};
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::json;
use crate::state::Shared;

/// A call as the ledger has it.
#[derive(Serialize)]
struct Entry {
    object: &'static str,
    id: String,
    /// `open`, `final` or `estimated`.
    state: String,
    #[serde(with = "time::serde::rfc3339")]
    admitted_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    settled_at: Option<OffsetDateTime>,
    operation: Option<String>,
    route: Option<String>,
    model: Option<String>,
    streamed: bool,
    status: Option<i32>,
    error_code: Option<String>,
    held: Option<Held>,
    reported: Option<Reported>,
    charged: Option<Charged>,
    cost_source: Option<String>,
    saved_tokens: Option<i64>,
    latency_ms: Option<i64>,
    first_byte_ms: Option<i64>,
    attempts: Option<i32>,
    rag_hits: Option<i32>,
    tags: Option<serde_json::Value>,
}

/// What a call in flight holds.
#[derive(Serialize)]
struct Held {
    tokens: i64,
    cost_usd: Box<RawValue>,
}

/// What the provider said that was used.
#[derive(Serialize)]
struct Reported {
    prompt_tokens: Option<i64>,
    completion_tokens: Option<i64>,
    cached_tokens: Option<i64>,
    cache_write_tokens: Option<i64>,
    reasoning_tokens: Option<i64>,
    cost_usd: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Charged {
    requests: i64,
    tokens: i64,
    cost_usd: Box<RawValue>,
}

/// Shows one call: of the project to its key, and to a person's key if it is one of the key's own. Whatever else is asked
/// for does not exist.
pub(crate) async fn get(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    // What is no text is no id either.
    let Path(id) = id.map_err(|_| EdgeError::NoSuchCall)?;
    let request = RequestId(id.parse().map_err(|_| EdgeError::NoSuchCall)?);
    let found = asked(&edge, edge.store.find_ledger_entry(request, caller.project, caller.persons_key())).await?;
    let entry = Entry::of(request, found.ok_or(EdgeError::NoSuchCall)?);
    Ok(json::of(&entry, HeaderMap::new())?)
}

impl Entry {
    fn of(request: RequestId, entry: LedgerEntry) -> Self {
        let cost = |nano: NanoUsd| usd(nano.0);
        Self {
            object: "usage.call",
            id: request.to_string(),
            admitted_at: entry.admitted_at,
            settled_at: entry.settled_at,
            operation: entry.operation,
            route: entry.route,
            model: entry.model,
            streamed: entry.streamed,
            status: entry.status,
            error_code: entry.error_code,
            held: entry.held.map(|(tokens, held)| Held { tokens, cost_usd: cost(held) }),
            reported: entry.prompt_tokens.or(entry.completion_tokens).map(|_| Reported {
                prompt_tokens: entry.prompt_tokens,
                completion_tokens: entry.completion_tokens,
                cached_tokens: entry.cached_tokens,
                cache_write_tokens: entry.cache_write_tokens,
                reasoning_tokens: entry.reasoning_tokens,
                cost_usd: entry.reported_cost.map(cost),
            }),
            charged: entry.charged.map(|charged| Charged {
                requests: charged.requests,
                tokens: charged.tokens,
                cost_usd: cost(charged.cost),
            }),
            state: entry.state,
            cost_source: entry.cost_source,
            saved_tokens: entry.saved_tokens,
            latency_ms: entry.latency_ms,
            first_byte_ms: entry.first_byte_ms,
            attempts: entry.attempts,
            rag_hits: entry.rag_hits,
            tags: entry.tags,
        }
    }
}
