//! One call from its first byte to its last.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use domain::Secret;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    Options,
    answer::Answer,
    chat::{self, completions, gemini, messages, ollama, responses},
    embed,
    error::{ApiError, error_body},
    models, moderations,
    plan::Plan,
    rerank,
    script::{self, Behaviour, Board, Outcome, Raw, ScriptedError, Seen, SeenCall},
};

/// Where Gemini's API has its models.
const GEMINI: &str = "/v1beta/models/";
/// The media type of streams of lines.
const LINES: &str = "application/x-ndjson";
/// Longest body of a request.
const BODY_LIMIT: usize = 32 * 1024 * 1024;
/// Longest body the log keeps.
const LOGGED_BODY_LIMIT: usize = 1024 * 1024;
/// A request of this size is read and counted in no time.
const SMALL_BODY: usize = 64 * 1024;
/// A body must be complete after this long.
const BODY_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The call ends without an answer: its connection is closed.
#[derive(Debug)]
pub(crate) struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is closed on request")
    }
}

impl std::error::Error for Closed {}

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) board: Arc<Board>,
    pub(crate) stop: CancellationToken,
    pub(crate) answers: AtomicU64,
}

/// The part of a request that answers depend on.
struct Call {
    method: Method,
    path: String,
    query: Option<String>,
    headers: HeaderMap,
    body: Bytes,
    key: Result<Option<usize>, ApiError>,
}

impl Shared {
    /// Answers one request.
    pub(crate) async fn call(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Closed> {
        let (head, body) = request.into_parts();
        let body = match read(body).await {
            Ok(body) => body,
            Err(error) => return Ok(plain(error.into())),
        };
        let call = Call {
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            key: key(&head.headers, &self.options.api_keys),
            method: head.method,
            headers: head.headers,
            body,
        };
        if call.path == "/healthz" {
            return Ok(plain(Answer::json(&serde_json::json!({ "status": "ok" }))));
        }
        if self.options.script {
            let query = call.query.as_deref();
            if let Some(answer) = script::answer(&self.board, &call.method, &call.path, query, &call.body).await {
                return Ok(plain(answer));
            }
        }
        self.answer(call).await
    }

    async fn answer(&self, call: Call) -> Result<Response<Body>, Closed> {
        let behaviour = self.options.script.then(|| self.board.next(&call.path)).flatten().unwrap_or_default();
        // A benchmark's calls are answered without being read.
        let body: Result<Value, _> = if behaviour.is_fixed() && !self.board.keeps_calls() {
            Ok(Value::Null)
        } else {
            serde_json::from_slice(&call.body)
        };
        let mut seen = if self.options.script {
            self.board.see(|| call.noted(body.as_ref().ok(), &behaviour))
        } else {
            Seen::unseen()
        };
        if self.stop.run_until_cancelled(before(&mut seen, &behaviour)).await != Some(true) {
            seen.ends(Outcome::Cut);
            return Err(Closed);
        }
        let id = self.answers.fetch_add(1, Ordering::Relaxed);
        let path = call.path.clone();
        let answer = match (&behaviour.error, &behaviour.raw, call.key) {
            (Some(error), _, _) => scripted_error(error),
            (_, _, Err(error)) => error.into(),
            (_, Some(raw), _) => scripted_body(raw),
            _ if behaviour.has_chat() && call.body.len() < SMALL_BODY => {
                route(&call.method, &call.path, body, id, &behaviour, &self.options)
            }
            _ => {
                // An embedding of two thousand texts, or a choice among as many sentences, takes a while.
                let (options, behaviour) = (self.options.clone(), Arc::clone(&behaviour));
                let work = move || route(&call.method, &call.path, body, id, &behaviour, &options);
                tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
                    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "The answer could not be made.").into()
                })
            }
        };
        let answer = if behaviour.raw.is_none() { in_error_shape(&path, answer, &behaviour) } else { answer };
        Ok(respond(answer, &behaviour, seen, id, self.stop.clone()))
    }
}

/// What happens before the answer; false if there will be none.
async fn before(seen: &mut Seen, behaviour: &Behaviour) -> bool {
    if behaviour.hold {
        seen.hold().await;
    }
    if behaviour.first_byte_ms > 0 {
        tokio::time::sleep(Duration::from_millis(behaviour.first_byte_ms)).await;
    }
    if behaviour.hang {
        std::future::pending::<()>().await;
    }
    !behaviour.close
}

/// An error in the shape of the API that the path belongs to.
fn in_error_shape(path: &str, answer: Answer, behaviour: &Behaviour) -> Answer {
    let Answer::Whole { status, body, .. } = &answer else { return answer };
    if status.is_success() {
        return answer;
    }
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = body.pointer("/error/message").unwrap_or(&Value::Null);
    let error = behaviour.error.as_ref();
    let told = if path.starts_with("/v1/messages") {
        messages::error(*status, message, error.and_then(|error| error.r#type.as_deref()))
    } else if path.starts_with(GEMINI) {
        let code = error.and_then(|error| error.code.as_deref());
        gemini::error(*status, message, code, error.and_then(|error| error.retry_after.as_deref()))
    } else if path.starts_with("/api/") {
        ollama::error(message)
    } else if let Some(api) = rerank::Api::of(path) {
        api.error(message)
    } else {
        return answer;
    };
    Answer::whole(*status, told.to_string().into())
}

/// What a path of Gemini's API names: a model, and what is asked of it.
fn of_gemini(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(GEMINI)?.rsplit_once(':')
}

fn route(
    method: &Method,
    path: &str,
    body: Result<Value, serde_json::Error>,
    id: u64,
    behaviour: &Behaviour,
    options: &Options,
) -> Answer {
    let body = body.map_err(|error| {
        let message = format!("We could not parse the JSON body of your request: {error}.");
        ApiError::new(StatusCode::BAD_REQUEST, message)
    });
    let answer = match (method.as_str(), path) {
        ("POST", "/v1/chat/completions") => body.and_then(|body| chat::answer(&body, id, behaviour, options)),
        ("POST", "/v1/completions" | "/beta/completions") => {
            body.and_then(|body| completions::answer(&body, id, behaviour, options))
        }
        ("POST", "/v1/messages") => body.and_then(|body| messages::answer(&body, id, behaviour, options)),
        ("POST", "/v1/responses") => body.and_then(|body| responses::answer(&body, id, behaviour, options)),
        ("POST", "/v1/messages/count_tokens") => body.and_then(|body| messages::count(&body)),
        ("POST", "/api/chat") => body.and_then(|body| ollama::answer(&body, id, behaviour, options)),
        ("POST", "/api/embed") => body.and_then(|body| embed::native::ollama(&body, behaviour, options)),
        ("POST", path) if path.starts_with(GEMINI) => body.and_then(|body| match of_gemini(path) {
            Some((model, "generateContent")) => gemini::answer(model, false, &body, id, behaviour, options),
            Some((model, "streamGenerateContent")) => gemini::answer(model, true, &body, id, behaviour, options),
            Some((model, "batchEmbedContents")) => embed::native::gemini(model, &body, behaviour, options),
            _ => Err(ApiError::new(StatusCode::NOT_FOUND, "There is no such method.")),
        }),
        ("POST", "/v1/embeddings") => body.and_then(|body| embed::answer(&body, behaviour, options)),
        ("POST", "/v1/moderations") => body.and_then(|body| moderations::answer(&body, id)),
        ("POST", "/v1/rerank") => body.and_then(|body| rerank::answer(rerank::Api::Voyage, &body, id, behaviour)),
        ("POST", "/v2/rerank") => body.and_then(|body| rerank::answer(rerank::Api::Cohere, &body, id, behaviour)),
        ("GET", "/v1/models") => Ok(models::list()),
        ("GET", _) if path.starts_with("/v1/models/") => {
            Ok(models::get(path.trim_start_matches("/v1/models/"), options))
        }
        (_, "/v1/chat/completions" | "/v1/embeddings" | "/v1/models") => {
            let message = format!("Not allowed to {method} on {path}.");
            Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message))
        }
        _ => Err(ApiError::new(StatusCode::NOT_FOUND, format!("Invalid URL ({method} {path})"))),
    };
    answer.unwrap_or_else(Answer::from)
}

async fn read(body: Incoming) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIME_LIMIT, Limited::new(body, BODY_LIMIT).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("The body of the request is larger than {BODY_LIMIT} bytes."),
        )),
        Ok(Err(_)) => Err(ApiError::new(StatusCode::BAD_REQUEST, "The body of the request did not arrive whole.")),
        Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "The body of the request did not arrive in time.")),
    }
}

/// Headers that may carry a key.
const KEY_HEADERS: [&str; 5] = ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"];

/// Which key a call used.
fn key(headers: &HeaderMap, keys: &[Secret]) -> Result<Option<usize>, ApiError> {
    if keys.is_empty() {
        return Ok(None);
    }
    let given = KEY_HEADERS.iter().find_map(|name| headers.get(*name)).and_then(|value| value.to_str().ok());
    let given = given.map(|value| value.strip_prefix("Bearer ").unwrap_or(value).trim());
    let error = |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, message);
    let given = given.ok_or_else(|| error("You didn't provide an API key in an Authorization header."))?;
    let place = keys.iter().position(|key| key.expose() == given);
    place.map(Some).ok_or_else(|| error("Incorrect API key provided.").with_code("invalid_api_key"))
}

impl Call {
    fn noted(&self, body: Option<&Value>, behaviour: &Behaviour) -> SeenCall {
        let headers = self.headers.iter().map(|(name, value)| {
            let shown = if KEY_HEADERS.contains(&name.as_str()) { b"redacted" } else { value.as_bytes() };
            (name.as_str().to_owned(), String::from_utf8_lossy(shown).into_owned())
        });
        SeenCall {
            id: 0,
            method: self.method.to_string(),
            path: self.path.clone(),
            query: self.query.clone(),
            headers: headers.collect::<BTreeMap<_, _>>(),
            key: self.key.as_ref().ok().copied().flatten(),
            model: body.and_then(|body| body.get("model")).and_then(Value::as_str).map(str::to_owned),
            stream: body.and_then(|body| body.get("stream")).and_then(Value::as_bool).unwrap_or(false),
            body: body.filter(|_| self.body.len() <= LOGGED_BODY_LIMIT).cloned().unwrap_or_default(),
            body_bytes: self.body.len(),
            figures: behaviour.figures,
            at_ms: 0,
            end: None,
            status: None,
            bytes_sent: 0,
        }
    }
}

fn scripted_error(error: &ScriptedError) -> Answer {
    let status = status(error.status);
    let kind = error.r#type.as_deref().unwrap_or(match error.status {
        429 => "rate_limit_exceeded",
        500.. => "server_error",
        _ => "invalid_request_error",
    });
    let message = if error.message.is_empty() { "The script asks for this error." } else { &error.message };
    Answer::whole(status, error_body(message, kind, error.param.as_deref(), error.code.as_deref()))
}

fn scripted_body(raw: &Raw) -> Answer {
    if raw.status == 200 && raw.content_type.starts_with("text/event-stream") {
        return Answer::Events(in_events(&raw.body));
    }
    if raw.status == 200 && raw.content_type == LINES {
        return Answer::Lines(raw.body.split_inclusive('\n').map(|line| line.as_bytes().to_vec()).collect());
    }
    let (status, content_type) = (status(raw.status), raw.content_type.clone());
    Answer::Whole { status, content_type, body: raw.body.clone().into_bytes() }
}

/// A transcript cut after each blank line.
fn in_events(transcript: &str) -> Vec<Vec<u8>> {
    let mut events = vec![Vec::new()];
    for line in transcript.split_inclusive('\n') {
        if let Some(event) = events.last_mut() {
            event.extend_from_slice(line.as_bytes());
        }
        if line.trim_end_matches(['\n', '\r']).is_empty() {
            events.push(Vec::new());
        }
    }
    events.retain(|event| !event.is_empty());
    events
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// An answer that no script changes.
fn plain(answer: Answer) -> Response<Body> {
    respond(answer, &Behaviour::default(), Seen::unseen(), 0, CancellationToken::new())
}

fn respond(answer: Answer, behaviour: &Behaviour, mut seen: Seen, id: u64, stop: CancellationToken) -> Response<Body> {
    let (status, content_type, length) = match &answer {
        Answer::Whole { status, content_type, body } => (*status, content_type.clone(), Some(body.len())),
        Answer::Events(_) => (StatusCode::OK, "text/event-stream; charset=utf-8".to_owned(), None),
        Answer::Lines(_) => (StatusCode::OK, LINES.to_owned(), None),
    };
    seen.answered_with(status.as_u16());
    let mut response = Response::new(Body::from_stream(Plan::new(answer, behaviour).into_body(seen, stop)));
    *response.status_mut() = status;
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    };
    add(header::CONTENT_TYPE.as_str(), &content_type);
    add("x-request-id", &format!("req_{id:032x}"));
    match length {
        Some(length) if !behaviour.stay_open => add(header::CONTENT_LENGTH.as_str(), &length.to_string()),
        Some(_) => {}
        None => add(header::CACHE_CONTROL.as_str(), "no-cache"),
    }
    if let Some(retry_after) = behaviour.error.as_ref().and_then(|error| error.retry_after.as_deref()) {
        add(header::RETRY_AFTER.as_str(), retry_after);
    }
    for (name, value) in &behaviour.headers {
        add(name, value);
    }
    response
}
