//! Error answers (google.rpc.Status, google.rpc.error_details).

use std::time::Duration;

use http::HeaderMap;
use serde_json::value::RawValue;

use crate::dialect::openai;
use crate::error::{UpstreamError, Words};
use crate::json::{Members, elements, text_of};
use crate::scrub::scrub;

const MAX_LABEL_CHARS: usize = 64;

/// The decision for an answer with an error status.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, body: &[u8], credential: Option<&str>) -> UpstreamError {
    let error = std::str::from_utf8(body).ok().and_then(error_in);
    match error {
        Some(error) => {
            let shared = openai::refusal(status, headers, body, credential);
            decide(status, &error, shared.retry_after(), credential)
        }
        None => openai::refusal(status, headers, body, credential),
    }
}

/// The `error` member of an object, or of the first in an array of them: what was to be streamed comes in one.
pub(super) fn error_in(text: &str) -> Option<Members<'_>> {
    let object = match Members::parse(text) {
        Ok(members) => members,
        Err(_) => Members::parse(elements(text).ok()?.first()?.get()).ok()?,
    };
    Members::parse(object.present("error")?.get()).ok()
}

/// The decision for an error that came instead of an answer, or within one.
pub(super) fn in_answer(error: &Members<'_>, credential: Option<&str>) -> UpstreamError {
    let code = error.present("code").and_then(|code| code.get().parse().ok());
    decide(code.filter(|code| (400..600).contains(code)).unwrap_or(500), error, None, credential)
}

fn decide(status: u16, error: &Members<'_>, given: Option<Duration>, credential: Option<&str>) -> UpstreamError {
    let label = |value: &RawValue| -> Option<String> {
        let text = text_of(value)?;
        (!text.is_empty()).then(|| scrub(&text, credential).chars().take(MAX_LABEL_CHARS).collect())
    };
    let message = error.present("message").and_then(text_of).map(|text| scrub(&text, credential)).unwrap_or_default();
    let code = error.present("status").and_then(label);
    let details = Details::of(error);
    let words = |kind: &str| Words { message, error_type: Some(kind.to_owned()), code, param: None };
    match status {
        400 if details.is_bad_key => UpstreamError::Auth { status: 401 },
        401 | 403 => UpstreamError::Auth { status },
        429 => UpstreamError::RateLimited {
            words: words("rate_limit_exceeded"),
            retry_after: given.or(details.retry_after),
        },
        // CANCELLED: somebody on the way there gave up, for this end has not.
        499 => UpstreamError::Failed { status, words: words("server_error"), retry_after: None },
        400..=499 => UpstreamError::Rejected { status, words: words("invalid_request_error") },
        500..=599 => {
            UpstreamError::Failed { status, words: words("server_error"), retry_after: given.or(details.retry_after) }
        }
        _ => UpstreamError::BadAnswer("its status is neither success nor an error"),
    }
}

#[derive(Default)]
struct Details {
    retry_after: Option<Duration>,
    /// The key is not valid, which the API tells with 400.
    is_bad_key: bool,
}

impl Details {
    fn of(error: &Members<'_>) -> Self {
        let mut details = Self::default();
        let list = error.present("details").and_then(|value| elements(value.get()).ok()).unwrap_or_default();
        for detail in list.into_iter().filter_map(|value| Members::parse(value.get()).ok()) {
            let text = |name| detail.present(name).and_then(text_of);
            let kind = text("@type").unwrap_or_default();
            match kind.rsplit('.').next().unwrap_or_default() {
                "RetryInfo" => details.retry_after = text("retryDelay").and_then(|delay| seconds(&delay)),
                "ErrorInfo" => {
                    let reason = text("reason");
                    details.is_bad_key |= matches!(reason.as_deref(), Some("API_KEY_INVALID" | "API_KEY_EXPIRED"));
                }
                _ => {}
            }
        }
        details
    }
}

/// A duration as JSON has it in this API: seconds with an `s` behind (google.protobuf.Duration).
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}
