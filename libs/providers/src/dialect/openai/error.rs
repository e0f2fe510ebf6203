//! Error answers of OpenAI-shaped servers.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{HeaderName, RETRY_AFTER};
use serde_json::value::RawValue;
use time::PrimitiveDateTime;
use time::macros::format_description;

use crate::error::{UpstreamError, Words};
use crate::json::{Members, elements, object, text_of};
use crate::scrub::scrub;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const MAX_LABEL_CHARS: usize = 64;

/// The decision for an answer with an error status.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, body: &[u8], credential: Option<&str>) -> UpstreamError {
    let words = object(body)
        .map(|(_, members)| words_of(&members, credential))
        .or_else(|_| first_of_array(body, credential).ok_or(()))
        .unwrap_or_default();
    decide(status, words, retry_after(headers))
}

/// The decision for an `error` member in an answer that began with 200: in a stream, or instead of choices.
pub(crate) fn in_body(error: &RawValue, credential: Option<&str>) -> UpstreamError {
    let words = words_of_error(error, credential);
    let number = Members::parse(error.get()).ok().and_then(|members| {
        ["code", "status", "status_code"].iter().find_map(|name| {
            let value = members.present(name)?;
            value.get().trim_matches('"').parse::<u16>().ok().filter(|status| (400..600).contains(status))
        })
    });
    decide(number.unwrap_or(500), words, None)
}

/// The decision for an `error` object whose dialect says which status it stands for.
pub(crate) fn of_status(status: u16, error: &RawValue, credential: Option<&str>) -> UpstreamError {
    decide(status, words_of_error(error, credential), None)
}

fn decide(status: u16, words: Words, retry_after: Option<Duration>) -> UpstreamError {
    match status {
        401 | 403 => UpstreamError::Auth { status },
        429 => UpstreamError::RateLimited { words, retry_after },
        400..=499 => UpstreamError::Rejected { status, words },
        500..=599 => UpstreamError::Failed { status, words, retry_after },
        _ => UpstreamError::BadAnswer("its status is neither success nor an error"),
    }
}

fn words_of(members: &Members<'_>, credential: Option<&str>) -> Words {
    match members.present("error") {
        Some(error) => words_of_error(error, credential),
        None => words_of_members(members, credential),
    }
}

fn words_of_error(error: &RawValue, credential: Option<&str>) -> Words {
    match (text_of(error), Members::parse(error.get())) {
        (Some(message), _) => Words { message: scrub(&message, credential), ..Words::default() },
        (None, Ok(members)) => words_of_members(&members, credential),
        (None, Err(_)) => Words::default(),
    }
}

fn words_of_members(members: &Members<'_>, credential: Option<&str>) -> Words {
    let text = |name| members.present(name).and_then(text_of);
    let label = |name| -> Option<String> {
        let value = members.present(name)?;
        let text = text_of(value).map_or_else(|| value.get().to_owned(), |text| text.into_owned());
        let is_label = !text.is_empty() && !text.starts_with(['{', '[']);
        is_label.then(|| scrub(&text, credential).chars().take(MAX_LABEL_CHARS).collect())
    };
    Words {
        message: text("message").or_else(|| text("detail")).map(|text| scrub(&text, credential)).unwrap_or_default(),
        error_type: label("type"),
        code: label("code"),
        param: label("param"),
    }
}

/// Some servers wrap their error object into an array.
fn first_of_array(body: &[u8], credential: Option<&str>) -> Option<Words> {
    let list = elements(std::str::from_utf8(body).ok()?).ok()?;
    Some(words_of(&Members::parse(list.first()?.get()).ok()?, credential))
}

/// `retry-after-ms` where the server gives it, else `Retry-After` in seconds or as an HTTP date (RFC 9110, 10.2.3).
/// What cannot be read is dropped.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(millis) = text(&RETRY_AFTER_MS).and_then(|text| text.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    let value = text(&RETRY_AFTER)?;
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let format =
        format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
    let when: SystemTime = PrimitiveDateTime::parse(value, format).ok()?.assume_utc().into();
    Some(when.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> UpstreamError {
        refusal(status, &HeaderMap::new(), body.as_bytes(), Some("own-credential"))
    }

    #[test]
    fn the_words_of_every_known_shape_are_found() {
        for body in [
            r#"{"error":{"message":"bad own-credential","type":"t","code":"c","param":"p"}}"#,
            r#"[{"error":{"message":"bad own-credential","type":"t","code":"c","param":"p"}}]"#,
            r#"{"object":"error","message":"bad own-credential","type":"t","code":"c","param":"p"}"#,
        ] {
            let error = refused(400, body);
            assert_eq!(error.message(), "bad [redacted]");
            assert_eq!((error.error_type(), error.code(), error.param()), ("t", Some("c"), Some("p")));
            assert_eq!(error.status(), 400);
        }
        assert_eq!(refused(404, r#"{"error":"no such model"}"#).message(), "no such model");
        assert_eq!(refused(422, r#"{"detail":"field required"}"#).message(), "field required");
        assert_eq!(refused(400, r#"{"error":{"message":"m","code":40007}}"#).code(), Some("40007"));
    }

    #[test]
    fn an_answer_without_words_gets_ours() {
        for body in ["", "<html>oops</html>", r#"{"error":7}"#, r#"{"error":{}}"#] {
            let error = refused(400, body);
            assert_eq!(error.message(), "the provider refused the request");
            assert_eq!((error.error_type(), error.code()), ("upstream_error", None));
        }
    }

    #[test]
    fn a_refused_credential_is_not_the_clients_fault_and_its_words_stay_here() {
        let error = refused(401, r#"{"error":{"message":"Incorrect API key provided"}}"#);
        assert_eq!((error.status(), error.code()), (502, Some("upstream_auth")));
        assert!(!error.message().contains("Incorrect"));
    }

    #[test]
    fn the_wait_asked_for_is_read_in_all_its_forms() {
        let wait = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(wait("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        assert_eq!(wait("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later = wait("retry-after", "Fri, 31 Dec 2100 23:59:59 GMT").unwrap();
        assert!(later > Duration::from_secs(3600));
        for value in ["soon", "-1", "NaN", "1e400", ""] {
            assert_eq!(wait("retry-after", value), None, "{value}");
        }
    }

    #[test]
    fn an_error_within_a_stream_takes_its_own_number() {
        let error = |text: &str| in_body(&RawValue::from_string(text.to_owned()).unwrap(), None);
        assert_eq!(error(r#"{"message":"slow down","code":429}"#).status(), 429);
        assert_eq!(error(r#"{"message":"too much","code":"503"}"#).status(), 503);
        assert_eq!(error(r#"{"message":"broken","code":"server_error"}"#).status(), 502);
        assert_eq!(error(r#""broken""#).message(), "broken");
    }
}
