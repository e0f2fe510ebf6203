//! The ledger's calls: admission, settlement, the flush that makes settlements durable, and what is done after crashes.
//!
//! Each is one simple-protocol message and so one implicit transaction: no tier lock ever spans a round trip, and a
//! transaction pooler has nothing to break. Arguments are written as integers, uuids and hexadecimal only. They are sent
//! over a [`LedgerLink`], a connection that nobody else uses.

mod link;
mod message;

use std::sync::Arc;

use domain::{ApiKeyId, NanoUsd, Price, ProjectId, RequestId, Tier};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Store, StoreError};

pub use link::LedgerLink;

/// How many days the request log is ready for, beside today.
const LOG_DAYS_AHEAD: i32 = 7;

/// A million US dollars: more than any call can cost, so that sums of a project hold.
const MOST_COST: i64 = 1_000_000_000_000_000;

/// What a call asks the ledger for. The prices are the dearest of all targets that may answer.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The call.
    pub request: RequestId,
    /// Who pays.
    pub project: ProjectId,
    /// The key it came with; `None` for work of our own.
    pub key: Option<ApiKeyId>,
    /// Tokens that are certain to be charged as prompt.
    pub prompt_tokens: i64,
    /// Output tokens wanted at most, of all choices together.
    pub output_tokens: i64,
    /// Room for fewer output tokens than this is a denial.
    pub min_output: i64,
    /// Price of a prompt token.
    pub input_price: Price,
    /// Price of an output token.
    pub output_price: Price,
    /// Cost that does not depend on tokens.
    pub fixed_cost: NanoUsd,
    /// What the log row needs if this process never settles the call; a JSON object with names of `request_logs`.
    pub details: String,
}

impl Ask {
    /// What the call holds of the cost budgets if it may write that many output tokens, rounded up.
    #[must_use]
    pub fn cost(&self, output_tokens: i64) -> NanoUsd {
        let of = |tokens: i64, price: Price| i128::from(tokens.max(0)) * i128::from(price.0.max(0));
        let metered = of(self.prompt_tokens, self.input_price) + of(output_tokens, self.output_price);
        let cost = i128::from(self.fixed_cost.0) + (metered + 999_999) / 1_000_000;
        NanoUsd(i64::try_from(cost).unwrap_or(MOST_COST).min(MOST_COST))
    }
}

/// When a call was admitted, in microseconds since 1970 by the database's clock: with the request id, its row's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedAt(pub i64);

/// Which history of the ledger the database is on. It changes when a crash, or the promotion of a standby, may have lost
/// commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEpoch(pub(crate) Uuid);

/// The ledger's answer to one [`Ask`].
#[derive(Clone, Debug)]
pub enum Admission {
    /// The hold is taken.
    Admitted {
        /// When.
        at: AdmittedAt,
        /// The output bound that was held: what was asked, or what the tightest window had room for.
        output_tokens: i64,
        /// What is left after it.
        headroom: Headroom,
    },
    /// A cap has no room.
    Denied(Denial),
    /// The key or project may not call at all; the code says why (`key_revoked`, `key_expired`, `key_owner_inactive`,
    /// `project_not_granted`).
    Refused {
        /// The reason.
        code: String,
    },
}

/// Which cap has no room.
#[derive(Clone, Debug)]
pub struct Denial {
    /// `rate_limit_rpm`, `rate_limit_tpm`, `concurrency_limit`, `budget_daily`, `budget_monthly`, `cost_daily` or
    /// `cost_monthly`.
    pub code: String,
    /// Whose cap.
    pub tier: Tier,
    /// The cap, in its own unit: requests, tokens or nano-USD.
    pub cap: i64,
    /// Used and excess.
    pub used: i64,
    /// Held by calls in flight.
    pub held: i64,
    /// When the window ends; `None` for concurrency.
    pub resets_at: Option<OffsetDateTime>,
    /// Whole seconds until then, at least 1.
    pub retry_after_seconds: i64,
    /// What is left of the other caps.
    pub headroom: Headroom,
}

/// What is left of the caps, of the tier that has least. `None` where no tier has such a cap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headroom {
    /// Milliseconds until the minute window ends.
    pub minute_resets_in_ms: i64,
    /// Requests per minute: cap and rest.
    pub requests: Option<(i64, i64)>,
    /// Tokens per minute: cap and rest.
    pub tokens: Option<(i64, i64)>,
    /// Rest of the calls that may run at once.
    pub calls: Option<i64>,
    /// Rest of the daily token budget.
    pub day_tokens: Option<i64>,
    /// Rest of the monthly token budget.
    pub month_tokens: Option<i64>,
    /// Rest of the daily cost budget.
    pub day_cost: Option<NanoUsd>,
    /// Rest of the monthly cost budget.
    pub month_cost: Option<NanoUsd>,
}

impl Headroom {
    /// Whether some cap has room left for fewer than so many calls like this one.
    #[must_use]
    pub fn holds_fewer_than(&self, count: i64, call: &OpenCallRow) -> bool {
        let tokens = call.held_tokens.max(1).saturating_mul(count);
        let cost = call.held_cost.0.saturating_mul(count);
        let is_less = |rest: Option<i64>, needed: i64| rest.is_some_and(|rest| rest < needed);
        is_less(self.calls, count)
            || is_less(self.requests.map(|(_, rest)| rest), count)
            || [self.tokens.map(|(_, rest)| rest), self.day_tokens, self.month_tokens]
                .iter()
                .any(|rest| is_less(*rest, tokens))
            || [self.day_cost, self.month_cost].iter().any(|rest| is_less(rest.map(|rest| rest.0), cost))
    }
}

/// A call that is open, as the database may have to be told again after a crash.
#[derive(Clone, Debug)]
pub struct OpenCallRow {
    /// When it was admitted; `None` while that is not known.
    pub admitted_at: Option<AdmittedAt>,
    /// What was asked.
    pub ask: Arc<Ask>,
    /// The output bound that was held.
    pub output_tokens: i64,
    /// Tokens held; 0 when the admission was refused after all.
    pub held_tokens: i64,
    /// Cost held.
    pub held_cost: NanoUsd,
}

impl OpenCallRow {
    /// The row of an ask with that output bound.
    #[must_use]
    pub fn held(ask: Arc<Ask>, admitted_at: Option<AdmittedAt>, output_tokens: i64) -> Self {
        let held_tokens = ask.prompt_tokens.max(0).saturating_add(output_tokens);
        let held_cost = ask.cost(output_tokens);
        Self { admitted_at, ask, output_tokens, held_tokens, held_cost }
    }
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The call, and what it held.
    pub call: OpenCallRow,
    /// Whether it counts as a request.
    pub counts: bool,
    /// Tokens charged.
    pub tokens: i64,
    /// Cost charged.
    pub cost: NanoUsd,
    /// The log row.
    pub entry: Entry,
}

/// Columns of `request_logs` that the admission did not know yet. Members that are `None` stay as the admission wrote
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Entry {
    /// The model that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The provider that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_type: Option<String>,
    /// The connection that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_id: Option<i64>,
    /// HTTP status the client got; 499 when it had gone.
    pub status: i32,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Whether the charge rests on an estimate of ours and not on reported usage.
    #[serde(rename = "state", serialize_with = "state")]
    pub estimated: bool,
    /// Whether the answer was streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streamed: Option<bool>,
    /// Reported prompt tokens, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<i64>,
    /// Reported completion tokens, reasoning included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<i64>,
    /// Reported prompt tokens read from the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<i64>,
    /// Reported prompt tokens written to the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<i64>,
    /// Reported reasoning tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<i64>,
    /// What the provider says that the call has cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_cost: Option<NanoUsd>,
    /// `builtin`, `user`, `reported` or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_source: Option<String>,
    /// From acceptance to the end.
    pub latency_ms: i64,
    /// From acceptance to the first byte of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<i64>,
    /// Upstream attempts.
    pub attempts: i32,
    /// Passages that were added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rag_hits: Option<i32>,
}

fn state<S: serde::Serializer>(estimated: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *estimated { "estimated" } else { "final" })
}

impl Entry {
    /// The same without any text that came from outside.
    #[must_use]
    pub fn bare(&self) -> Self {
        Self { model: None, provider_type: None, error_code: None, cost_source: None, ..self.clone() }
    }

    /// Whether there is no such text.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        [&self.model, &self.provider_type, &self.error_code, &self.cost_source].iter().all(|text| text.is_none())
    }
}

impl Store {
    /// Makes the log partitions of today (UTC) and the next seven days, as far as they are missing. Any number of
    /// processes may do this at once. Rows of a day that is missing go to the default partition, so a failure loses
    /// nothing.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn ensure_log_days_ahead(&self) -> Result<(), StoreError> {
        // One statement each: a transaction over all of them would hold the log's lock for all of them.
        for day in 0..=LOG_DAYS_AHEAD {
            self.ensure_log_day(day).await?;
        }
        Ok(())
    }

    /// Makes the log partition of a UTC day, counted from today, if it is missing.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn ensure_log_day(&self, days_ahead: i32) -> Result<(), StoreError> {
        sqlx::query!("SELECT ensure_log_day((clock_timestamp() AT TIME ZONE 'UTC')::date + $1::int)", days_ahead)
            .execute(self.pool())
            .await?;
        Ok(())
    }
}
