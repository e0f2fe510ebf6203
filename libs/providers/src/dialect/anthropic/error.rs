//! Errors: what a provider says in the middle of a stream, and how clients of this API are told theirs.

use bytes::{Bytes, BytesMut};
use serde_json::json;
use serde_json::value::RawValue;

use super::writer::event;
use crate::dialect::openai::of_status;
use crate::error::UpstreamError;
use crate::hub::Told;
use crate::json::{Members, text_of};

/// The decision for an `error` event. It has no status, so its type stands for one (Anthropic API reference, Errors).
/// Errors that have a status look like everybody's.
pub(super) fn in_stream(error: &RawValue, credential: Option<&str>) -> UpstreamError {
    let members = Members::parse(error.get()).ok();
    let kind = members.as_ref().and_then(|members| members.present("type")).and_then(text_of);
    let status = match kind.as_deref().unwrap_or_default() {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "billing_error" => 402,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        "timeout_error" => 504,
        "overloaded_error" => 529,
        _ => 500,
    };
    of_status(status, error, credential)
}

/// The error type of the Messages API for a status. Spent budgets and quotas are limits of a rate there: their status is
/// 429, and only that type belongs to it.
#[must_use]
pub fn messages_error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// The last event of a stream that failed.
pub(crate) fn failure(told: &Told<'_>) -> Bytes {
    let mut error = json!({ "type": messages_error_type(told.status), "message": told.message });
    if let (Some(error), Some(code)) = (error.as_object_mut(), told.code) {
        error.insert("code".to_owned(), code.into());
    }
    let mut out = BytesMut::new();
    event("error", &format!(",\"error\":{error}"), &mut out);
    out.freeze()
}
