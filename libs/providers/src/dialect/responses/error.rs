//! Errors: what a provider says in the middle of a stream, and how clients of this API are told theirs.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use serde_json::json;
use serde_json::value::RawValue;

use super::echo::Echo;
use super::event::{Head, event};
use super::items::answer_id;
use crate::dialect::openai::of_status;
use crate::error::UpstreamError;
use crate::hub::Told;
use crate::json::{Members, text_of};

/// The decision for an error that has no status, so that its code stands for one (OpenAI API reference, The response
/// object, `error`).
pub(super) fn in_stream(error: &RawValue, credential: Option<&str>) -> UpstreamError {
    let members = Members::parse(error.get()).ok();
    let code = members.as_ref().and_then(|members| members.present("code")).and_then(text_of);
    let status = match code.as_deref().unwrap_or_default() {
        "rate_limit_exceeded" | "insufficient_quota" => 429,
        "invalid_prompt" | "context_length_exceeded" => 400,
        code if code.contains("image") => 400,
        "vector_store_timeout" => 504,
        _ => 500,
    };
    of_status(status, error, credential)
}

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
