//! The ledger's calls: admission, settlement and the flush that makes settlements durable.
//!
//! Each is one simple-protocol message and so one implicit transaction: no tier lock ever spans a round trip, and a
//! transaction pooler has nothing to break. Arguments are written as integers, uuids and hexadecimal only.

use std::fmt::Write;

use domain::{ApiKeyId, InstanceId, NanoUsd, Price, ProjectId, RequestId, Tier};
use serde::Serialize;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Store, StoreError};

/// How many days the request log is ready for, beside today.
const LOG_DAYS_AHEAD: i32 = 7;

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

/// The ledger's answer to one [`Ask`].
#[derive(Clone, Debug)]
pub enum Admission {
    /// The hold is taken.
    Admitted {
        /// When, by the database's clock.
        at: OffsetDateTime,
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
    /// Rest of the daily token budget.
    pub day_tokens: Option<i64>,
    /// Rest of the monthly token budget.
    pub month_tokens: Option<i64>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The call.
    pub request: RequestId,
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
#[derive(Clone, Debug, Default, Serialize)]
#[serde(default)]
pub struct Entry {
    /// `chat`, `embeddings`, `retrieve` or `ingest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Public model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
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
    pub streamed: bool,
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
    /// `builtin`, `user` or `none`.
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
    /// The document an ingestion call was for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document_id: Option<i64>,
    /// The client's tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Value>,
}

fn state<S: serde::Serializer>(estimated: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *estimated { "estimated" } else { "final" })
}

impl Store {
    /// Admits or denies calls, in order, each against what the admitted ones before it left. The answers are in the
    /// order of the asks.
    ///
    /// # Errors
    /// As for any statement. When the connection is lost the outcome is unknown: the calls may be admitted.
    pub async fn admit(&self, instance: InstanceId, asks: &[Ask]) -> Result<Vec<Admission>, StoreError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let mut sql = String::with_capacity(512 + asks.len() * 256);
        // Times as integers: the text form of a time without a fraction is not one the driver reads.
        let _ = write!(
            sql,
            "SELECT *, (extract(epoch FROM admitted_at) * 1000000)::bigint AS admitted_us,
                    (extract(epoch FROM resets_at) * 1000000)::bigint AS resets_us
               FROM admit_v1('{}'",
            instance.0
        );
        write_uuids(&mut sql, asks.iter().map(|ask| ask.request.0));
        write_integers(&mut sql, asks.iter().map(|ask| Some(ask.project.0)));
        write_integers(&mut sql, asks.iter().map(|ask| ask.key.map(i64::from)));
        write_integers(&mut sql, asks.iter().map(|ask| Some(ask.prompt_tokens)));
        write_integers(&mut sql, asks.iter().map(|ask| Some(ask.output_tokens)));
        write_integers(&mut sql, asks.iter().map(|ask| Some(ask.min_output)));
        write_integers(&mut sql, asks.iter().map(|ask| Some(ask.input_price.0)));
        write_integers(&mut sql, asks.iter().map(|ask| Some(ask.output_price.0)));
        write_integers(&mut sql, asks.iter().map(|ask| Some(ask.fixed_cost.0)));
        let details: Vec<String> = asks.iter().map(|ask| without_nul(ask.details.clone())).collect();
        write_texts(&mut sql, details.iter().map(String::as_str));
        sql.push(')');
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(self.pool()).await?;
        rows.iter().map(read_admission).collect()
    }

    /// Settles calls. Returns the ids that were open until now; the others had been settled before and are unchanged.
    /// What it did is durable once [`Store::flush`], begun afterwards, has returned.
    ///
    /// # Errors
    /// As for any statement. Sending the same batch again is harmless.
    pub async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<RequestId>, StoreError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let mut sql = String::with_capacity(256 + settlements.len() * 1024);
        sql.push_str("SELECT * FROM settle_v1(");
        write_array(&mut sql, "uuid", settlements.iter().map(|s| s.request.0), |sql, id| {
            let _ = write!(sql, "'{id}'");
        });
        write_integers(&mut sql, settlements.iter().map(|s| Some(i64::from(s.counts))));
        write_integers(&mut sql, settlements.iter().map(|s| Some(s.tokens)));
        write_integers(&mut sql, settlements.iter().map(|s| Some(s.cost.0)));
        let entries: Vec<String> = settlements.iter().map(|s| json(&s.entry)).collect();
        write_texts(&mut sql, entries.iter().map(String::as_str));
        sql.push(')');
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(self.pool()).await?;
        rows.iter().map(|row| Ok(RequestId(row.try_get(0)?))).collect()
    }

    /// Makes everything that was committed before this call durable: the log is flushed in order, so one durable
    /// transaction covers all asynchronous ones before it.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn flush(&self) -> Result<(), StoreError> {
        sqlx::raw_sql("SELECT pg_logical_emit_message(true, 'ragmux', '')").execute(self.pool()).await?;
        Ok(())
    }

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

/// The JSON of an entry, fit for jsonb.
fn json(entry: &Entry) -> String {
    without_nul(serde_json::to_string(entry).unwrap_or_else(|_| "{}".to_owned()))
}

/// PostgreSQL's texts cannot have NUL, and jsonb refuses its escape: whatever a client put into a name, the row is
/// written.
fn without_nul(json: String) -> String {
    if !json.contains("\\u0000") {
        return json;
    }
    // The escape is only one if the backslash before it is not itself escaped, so the values are cleaned, not the text.
    let Ok(mut value) = serde_json::from_str(&json) else { return json };
    strip(&mut value);
    value.to_string()
}

fn strip(value: &mut Value) {
    match value {
        Value::String(text) => text.retain(|c| c != '\0'),
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Object(members) => {
            let cleaned = std::mem::take(members).into_iter().map(|(name, mut value)| {
                strip(&mut value);
                (name.replace('\0', ""), value)
            });
            *members = cleaned.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn write_array<T>(sql: &mut String, kind: &str, items: impl Iterator<Item = T>, write_one: impl Fn(&mut String, T)) {
    sql.push_str("ARRAY[");
    for (position, item) in items.enumerate() {
        if position > 0 {
            sql.push(',');
        }
        write_one(sql, item);
    }
    let _ = write!(sql, "]::{kind}[]");
}

fn write_uuids(sql: &mut String, ids: impl Iterator<Item = Uuid>) {
    sql.push(',');
    write_array(sql, "uuid", ids, |sql, id| {
        let _ = write!(sql, "'{id}'");
    });
}

fn write_integers(sql: &mut String, values: impl Iterator<Item = Option<i64>>) {
    sql.push(',');
    write_array(sql, "bigint", values, |sql, value| match value {
        // In quotes: the literal of the smallest bigint would otherwise be read as an operator and a too large number.
        Some(value) => {
            let _ = write!(sql, "'{value}'");
        }
        None => sql.push_str("NULL"),
    });
}

fn write_texts<'a>(sql: &mut String, values: impl Iterator<Item = &'a str>) {
    sql.push(',');
    write_array(sql, "text", values, |sql, value| {
        sql.push_str("convert_from('\\x");
        sql.push_str(&hex::encode(value.as_bytes()));
        sql.push_str("'::bytea,'UTF8')");
    });
}

fn read_admission(row: &PgRow) -> Result<Admission, StoreError> {
    let cap_and_rest = |cap: &str, rest: &str| -> Result<Option<(i64, i64)>, sqlx::Error> {
        Ok(row.try_get::<Option<i64>, _>(cap)?.zip(row.try_get::<Option<i64>, _>(rest)?))
    };
    let headroom = Headroom {
        minute_resets_in_ms: row.try_get::<Option<i64>, _>("minute_resets_in_ms")?.unwrap_or(0),
        requests: cap_and_rest("limit_requests", "remaining_requests")?,
        tokens: cap_and_rest("limit_tokens", "remaining_tokens")?,
        day_tokens: row.try_get("remaining_day_tokens")?,
        month_tokens: row.try_get("remaining_month_tokens")?,
    };
    let Some(code) = row.try_get::<Option<String>, _>("denial_code")? else {
        return Ok(Admission::Admitted {
            at: read_time(row.try_get("admitted_us")?)?,
            output_tokens: row.try_get("output_tokens")?,
            headroom,
        });
    };
    let Some(tier) = row.try_get::<Option<i16>, _>("denial_tier")? else {
        return Ok(Admission::Refused { code });
    };
    Ok(Admission::Denied(Denial {
        code,
        tier: if tier == 1 { Tier::Project } else { Tier::Key },
        cap: row.try_get("denial_cap")?,
        used: row.try_get("denial_used")?,
        held: row.try_get("denial_held")?,
        resets_at: row.try_get::<Option<i64>, _>("resets_us")?.map(read_time).transpose()?,
        retry_after_seconds: row.try_get("retry_after_seconds")?,
        headroom,
    }))
}

fn read_time(microseconds: i64) -> Result<OffsetDateTime, StoreError> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(microseconds) * 1000)
        .map_err(|error| StoreError::from(sqlx::Error::Decode(Box::new(error))))
}
