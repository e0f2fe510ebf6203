//! `GET /v1/usage`.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use domain::Window;
use http::HeaderMap;
use serde::Serialize;
use serde_json::value::RawValue;
use store::usage::{Amounts, TierUsage, WindowUsage};
use time::OffsetDateTime;

use super::{asked, usd};
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::json;
use crate::money::number;
use crate::state::Shared;

#[derive(Serialize)]
struct Usage<'a> {
    object: &'static str,
    tiers: Vec<Tier<'a>>,
}

/// Whose windows, and the calls in flight.
#[derive(Serialize)]
struct Tier<'a> {
    scope: &'static str,
    id: i64,
    name: &'a str,
    /// The IANA zone of days and months; minutes are UTC.
    time_zone: &'a str,
    open_calls: i64,
    concurrent_requests: Option<i64>,
    minute: Option<Figures>,
    day: Option<Figures>,
    month: Option<Figures>,
}

#[derive(Serialize)]
struct Figures {
    #[serde(with = "time::serde::rfc3339")]
    starts_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    ends_at: OffsetDateTime,
    requests: Figure,
    tokens: Figure,
    /// US dollars.
    cost_usd: Figure,
}

/// What is charged is used and excess together; what a cap has left is less by what is held as well.
#[derive(Serialize)]
struct Figure {
    limit: Option<Box<RawValue>>,
    used: Box<RawValue>,
    excess: Box<RawValue>,
    held: Box<RawValue>,
    remaining: Option<Box<RawValue>>,
}

/// Shows the running windows of the project and, to a person's key, of the key.
pub(crate) async fn list(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Failure> {
    let tiers = asked(&edge, edge.store.list_tier_usage(caller.project, caller.key())).await?;
    if tiers.is_empty() {
        // A key that leads to a project which is gone leads nowhere.
        return Err(EdgeError::ProjectNotGranted.into());
    }
    let usage = Usage { object: "usage", tiers: tiers.iter().map(tier).collect() };
    Ok(json::of(&usage, HeaderMap::new())?)
}

fn tier(usage: &TierUsage) -> Tier<'_> {
    let of = |window: Window| usage.windows.iter().find(|usage| usage.window == window).map(figures);
    Tier {
        scope: usage.tier.as_str(),
        id: usage.id,
        name: &usage.name,
        time_zone: &usage.time_zone,
        open_calls: usage.open_calls,
        concurrent_requests: (usage.concurrent_requests > 0).then_some(usage.concurrent_requests),
        minute: of(Window::Minute),
        day: of(Window::Day),
        month: of(Window::Month),
    }
}

fn figures(window: &WindowUsage) -> Figures {
    let whole = |amount: i64| number(amount.to_string());
    Figures {
        starts_at: window.starts_at,
        ends_at: window.ends_at,
        requests: figure(window.requests, whole),
        tokens: figure(window.tokens, whole),
        cost_usd: figure(window.cost, usd),
    }
}

fn figure(amounts: Amounts, show: impl Fn(i64) -> Box<RawValue>) -> Figure {
    let Amounts { limit, used, excess, held } = amounts;
    let rest = limit.saturating_sub(used).saturating_sub(excess).saturating_sub(held).max(0);
    Figure {
        limit: (limit > 0).then(|| show(limit)),
        used: show(used),
        excess: show(excess),
        held: show(held),
        remaining: (limit > 0).then(|| show(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_never_less_than_nothing_and_absent_without_a_cap() {
        let shown = |amounts| serde_json::to_value(figure(amounts, usd)).unwrap();
        let amounts = Amounts { limit: 2_000_000_000, used: 500_000_000, excess: 1, held: 250_000_000 };
        assert_eq!(
            shown(amounts).to_string(),
            r#"{"excess":1e-9,"held":0.25,"limit":2,"remaining":1.249999999,"used":0.5}"#
        );
        assert_eq!(shown(Amounts { used: 3_000_000_000, ..amounts })["remaining"], 0);
        let unlimited = shown(Amounts { limit: 0, ..amounts });
        assert!(unlimited["limit"].is_null() && unlimited["remaining"].is_null());
    }
}
