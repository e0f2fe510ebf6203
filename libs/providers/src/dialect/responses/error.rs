//! How clients of this API are told that their answer failed.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use serde_json::json;

use super::echo::Echo;
use super::event::{Head, event};
use super::items::answer_id;
use crate::hub::Told;

/// What the `error` of an answer says that failed.
pub(super) fn told_error(told: &Told<'_>) -> String {
    let code = told.code.unwrap_or(match told.status {
        429 => "rate_limit_exceeded",
        400..=499 => "invalid_prompt",
        _ => "server_error",
    });
    json!({ "code": code, "message": told.message }).to_string()
}

/// The only event of a stream that failed before it began.
pub(crate) fn failure(told: &Told<'_>) -> Bytes {
    let created_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let created_s = i64::try_from(created_s).unwrap_or(i64::MAX);
    let (id, echo) = (answer_id(None), Echo::default());
    let response = Head { id: &id, created_s, model: "", echo: &echo }.failed(&told_error(told), "", None);
    let mut out = BytesMut::new();
    event("response.failed", 0, &format!(",\"response\":{response}"), &mut out);
    out.freeze()
}
