//! Ledger calls as messages, and their answers.

use std::fmt::Write;

use domain::{NanoUsd, Tier};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Admission, AdmittedAt, Denial, Entry, Headroom};
use crate::StoreError;

/// One call of a function, written argument by argument from integers, uuids and hexadecimal.
pub(super) struct Message {
    sql: String,
    has_arguments: bool,
}

impl Message {
    /// A call that answers with the function's rows.
    pub(super) fn call(function: &'static str) -> Self {
        let mut sql = String::with_capacity(1024);
        sql.push_str("SELECT * FROM ");
        sql.push_str(function);
        sql.push('(');
        Self { sql, has_arguments: false }
    }

    pub(super) fn finish(mut self) -> String {
        self.sql.push(')');
        self.sql
    }

    fn next(&mut self) -> &mut String {
        if self.has_arguments {
            self.sql.push(',');
        }
        self.has_arguments = true;
        &mut self.sql
    }

    pub(super) fn uuid(mut self, value: Uuid) -> Self {
        let _ = write!(self.next(), "'{value}'");
        self
    }

    pub(super) fn flag(mut self, value: bool) -> Self {
        self.next().push_str(if value { "true" } else { "false" });
        self
    }

    pub(super) fn integer(mut self, value: i64) -> Self {
        // In quotes: the literal of the smallest bigint would otherwise be read as an operator and a too large number.
        let _ = write!(self.next(), "'{value}'");
        self
    }

    pub(super) fn uuids(mut self, values: impl Iterator<Item = Uuid>) -> Self {
        let sql = self.next();
        sql.push_str("'{");
        for (position, value) in values.enumerate() {
            let comma = if position > 0 { "," } else { "" };
            let _ = write!(sql, "{comma}{value}");
        }
        sql.push_str("}'");
        self
    }

    pub(super) fn integers(mut self, values: impl Iterator<Item = Option<i64>>) -> Self {
        let sql = self.next();
        sql.push_str("'{");
        for (position, value) in values.enumerate() {
            let comma = if position > 0 { "," } else { "" };
            let _ = match value {
                Some(value) => write!(sql, "{comma}{value}"),
                None => write!(sql, "{comma}NULL"),
            };
        }
        sql.push_str("}'");
        self
    }

    /// An array of JSON values.
    pub(super) fn json<'a>(mut self, values: impl Iterator<Item = &'a str>) -> Self {
        let mut array = String::from("[");
        for (position, value) in values.enumerate() {
            if position > 0 {
                array.push(',');
            }
            array.push_str(value);
        }
        array.push(']');
        let sql = self.next();
        sql.push_str("convert_from('\\x");
        sql.push_str(&hex::encode(array));
        sql.push_str("','UTF8')::jsonb");
        self
    }
}

/// The JSON of an entry, fit for jsonb.
pub(super) fn json(entry: &Entry) -> String {
    without_nul(serde_json::to_string(entry).unwrap_or_else(|_| "{}".to_owned()))
}

/// PostgreSQL's texts cannot have NUL, and jsonb refuses its escape: whatever a client put into a name, the row is
/// written.
pub(super) fn without_nul(json: String) -> String {
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

/// Reads a row of type `admission_v2`, in the order of its members: looking each up by name costs more than all else.
pub(super) fn read_admission(row: &PgRow) -> Result<Admission, StoreError> {
    let number = |position: usize| row.try_get::<Option<i64>, _>(position);
    let headroom = Headroom {
        minute_resets_in_ms: number(10)?.unwrap_or(0),
        requests: number(11)?.zip(number(12)?),
        tokens: number(13)?.zip(number(14)?),
        day_tokens: number(15)?,
        month_tokens: number(16)?,
        day_cost: number(17)?.map(NanoUsd),
        month_cost: number(18)?.map(NanoUsd),
        calls: number(19)?,
    };
    let Some(code) = row.try_get::<Option<String>, _>(3)? else {
        return Ok(Admission::Admitted { at: AdmittedAt(row.try_get(1)?), output_tokens: row.try_get(2)?, headroom });
    };
    let Some(tier) = row.try_get::<Option<i16>, _>(4)? else {
        return Ok(Admission::Refused { code });
    };
    Ok(Admission::Denied(Denial {
        code,
        tier: if tier == 1 { Tier::Project } else { Tier::Key },
        cap: row.try_get(5)?,
        used: row.try_get(6)?,
        held: row.try_get(7)?,
        resets_at: number(8)?.map(read_time).transpose()?,
        retry_after_seconds: row.try_get(9)?,
        headroom,
    }))
}

fn read_time(microseconds: i64) -> Result<OffsetDateTime, StoreError> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(microseconds) * 1000)
        .map_err(|error| StoreError::from(sqlx::Error::Decode(Box::new(error))))
}
