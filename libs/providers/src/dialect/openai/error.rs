//! Error answers of OpenAI-shaped servers.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use domain::ProviderType;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use serde_json::value::RawValue;
use time::PrimitiveDateTime;
use time::macros::format_description;

use crate::error::{UpstreamError, Words};
use crate::json::{Members, elements, object, text_of};
use crate::scrub::scrub;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const MAX_LABEL_CHARS: usize = 64;
/// The most of a validator's complaints that are told; a client mends one after the other anyway.
const MAX_COMPLAINTS: usize = 4;

/// The decision for an answer with an error status.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, body: &[u8], credential: Option<&str>) -> UpstreamError {
    decide(status, words_in(headers, body, credential), retry_after(headers))
}

/// The words of an error answer, in whichever shape.
fn words_in(headers: &HeaderMap, body: &[u8], credential: Option<&str>) -> Words {
    object(body)
        .map(|(_, members)| words_of(&members, credential))
        .or_else(|_| first_of_array(body, credential).ok_or(()))
        .unwrap_or_else(|()| Words { message: plain(headers, body, credential), ..Words::default() })
}

/// What a server says in plain text, as xAI's and DeepSeek's do of a body that they cannot read. Pages for people, which
/// come from what is in front of a server, have another type.
fn plain(headers: &HeaderMap, body: &[u8], credential: Option<&str>) -> String {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let text = std::str::from_utf8(body).unwrap_or_default().trim();
    if kind.starts_with("text/plain") && !text.starts_with('<') { scrub(text, credential) } else { String::new() }
}

/// Whether an error says which rules the input broke.
fn is_moderated(body: &[u8]) -> bool {
    let told = object(body).ok().and_then(|(_, members)| {
        let error = Members::parse(members.present("error")?.get()).ok()?;
        Members::parse(error.present("metadata")?.get()).ok()?.present("reasons")
    });
    told.is_some()
}

/// The decision for an answer of a provider that is known to use this status in a way of its own.
pub(crate) fn refusal_by(
    provider: ProviderType,
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
    credential: Option<&str>,
) -> UpstreamError {
    // API Error Codes and Responses, 498: the flex tier has no room, try again later.
    let status = if provider == ProviderType::Groq && status == 498 { 429 } else { status };
    match (provider, status, refusal(status, headers, body, credential)) {
        // Debugging Errors: a key that is not known is a bad request, like a bad argument. Only its words tell.
        (ProviderType::XAi, 400, UpstreamError::Rejected { words, .. })
            if words.message.starts_with("Incorrect API key") =>
        {
            UpstreamError::Auth { status }
        }
        // Not about the key, although it has the status of such: Errors and Debugging, Moderation errors, and what xAI
        // says of inputs that it will not have.
        (ProviderType::OpenRouter | ProviderType::XAi, 403, refused) => {
            let words = words_in(headers, body, credential);
            let is_of_input = match provider {
                ProviderType::OpenRouter => is_moderated(body),
                _ => words.message.starts_with("Content violates usage guidelines"),
            };
            if is_of_input { UpstreamError::Rejected { status, words } } else { refused }
        }
        (_, _, refused) => refused,
    }
}

/// The decision for an `error` member in an answer that began with 200: in a stream, or instead of choices. Its status is
/// a number in it, or is what its code stands for.
pub(crate) fn in_body(error: &RawValue, credential: Option<&str>) -> UpstreamError {
    let members = Members::parse(error.get()).ok();
    let present = |name| members.as_ref().and_then(|members| members.present(name));
    let number = ["code", "status", "status_code"].iter().find_map(|name| {
        let status = present(name)?.get().trim_matches('"').parse::<u16>().ok();
        status.filter(|status| (400..600).contains(status))
    });
    let status = number.unwrap_or_else(|| present("code").and_then(text_of).map_or(500, |code| status_of(&code)));
    decide(status, words_of_error(error, credential), None)
}

/// The status that a code stands for (OpenAI API reference, The response object, `error`).
fn status_of(code: &str) -> u16 {
    match code {
        "rate_limit_exceeded" | "insufficient_quota" => 429,
        "invalid_prompt" | "context_length_exceeded" | "content_filter" => 400,
        code if code.contains("image") => 400,
        "vector_store_timeout" => 504,
        _ => 500,
    }
}

/// The decision for an `error` object whose dialect says which status it stands for.
pub(crate) fn of_status(status: u16, error: &RawValue, credential: Option<&str>) -> UpstreamError {
    decide(status, words_of_error(error, credential), None)
}

fn decide(status: u16, words: Words, retry_after: Option<Duration>) -> UpstreamError {
    match status {
        401 | 403 => UpstreamError::Auth { status },
        429 => UpstreamError::RateLimited { words, retry_after },
        // "The client has gone", which it has not: somebody on the way there gave up.
        499 => UpstreamError::Failed { status, words, retry_after },
        400..=499 => UpstreamError::Rejected { status, words },
        500..=599 => UpstreamError::Failed { status, words, retry_after },
        _ => UpstreamError::BadAnswer("its status is neither success nor an error"),
    }
}

fn words_of(members: &Members<'_>, credential: Option<&str>) -> Words {
    match members.present("error") {
        // xAI writes the code beside it.
        Some(error) => match text_of(error) {
            Some(message) => Words { message: scrub(&message, credential), ..words_of_members(members, credential) },
            None => words_of_error(error, credential),
        },
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
    let message = members.present("message").or_else(|| members.present("detail"));
    let complaints = message.filter(|message| text_of(message).is_none()).map(complaints_in).unwrap_or_default();
    let message = message.and_then(text_of).map_or_else(|| told(&complaints), Cow::into_owned);
    let label = |name| -> Option<String> {
        let value = members.present(name)?;
        let text = text_of(value).map_or_else(|| value.get().to_owned(), |text| text.into_owned());
        let is_label = !text.is_empty() && !text.starts_with(['{', '[']);
        is_label.then(|| scrub(&text, credential).chars().take(MAX_LABEL_CHARS).collect())
    };
    let place = || complaints.first().map(|complaint| scrub(&complaint.place, credential));
    Words {
        message: scrub(&message, credential),
        error_type: label("type"),
        code: label("code"),
        param: label("param").or_else(place).filter(|place| !place.is_empty()),
    }
}

/// What a validator has to say of one field.
struct Complaint {
    place: String,
    message: String,
}

/// The list that servers built on FastAPI give instead of a sentence (Mistral API reference, HTTPValidationError), bare or
/// in a `detail`. What the client sent, which is repeated there, is not looked at.
fn complaints_in(value: &RawValue) -> Vec<Complaint> {
    let detail = Members::parse(value.get()).ok().and_then(|members| members.present("detail"));
    let list = elements(detail.unwrap_or(value).get()).unwrap_or_default();
    let complaint = |raw: &RawValue| {
        let members = Members::parse(raw.get()).ok()?;
        let message = members.present("msg").and_then(text_of)?.into_owned();
        let steps = members.present("loc").and_then(|place| elements(place.get()).ok()).unwrap_or_default();
        let step = |step: &RawValue| text_of(step).map_or_else(|| step.get().to_owned(), Cow::into_owned);
        let steps: Vec<String> = steps.into_iter().map(step).filter(|step| step != "body").collect();
        Some(Complaint { place: steps.join("."), message })
    };
    list.into_iter().filter_map(complaint).take(MAX_COMPLAINTS).collect()
}

fn told(complaints: &[Complaint]) -> String {
    let sentence = |Complaint { place, message }: &Complaint| match place.as_str() {
        "" => message.clone(),
        place => format!("{place}: {message}"),
    };
    complaints.iter().map(sentence).collect::<Vec<_>>().join("; ")
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
