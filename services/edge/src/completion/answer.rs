//! A chat call from its body to its answer.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::response::Response;
use domain::RequestId;
use futures::StreamExt;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use ledger::Ending;
use providers::{Answer, AnthropicHeaders, ClientDialect, Inbound, UpstreamError};
use tokio::time::timeout;

use super::prepare::{Ready, prepare};
use super::relay::{Relay, connect};
use crate::admission::{
    Tags, interrupted, output, overruled_by_now, settle_failed, settle_interrupted, settle_unsent, used,
};
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::json;
use crate::routes::request_id::Arrival;
use crate::state::Shared;

const BETA: HeaderName = HeaderName::from_static("anthropic-beta");
const VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Who asks, and when.
pub(crate) struct Asked {
    pub(crate) caller: Caller,
    pub(crate) id: RequestId,
    pub(crate) accepted: Instant,
    pub(crate) tags: Tags,
    /// What a client of Anthropic's API says in headers.
    pub(crate) anthropic: AnthropicHeaders,
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let missing = || EdgeError::internal("a layer around the handler is missing");
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(missing)?;
        let id = parts.extensions.get::<RequestId>().copied().ok_or_else(missing)?;
        let Arrival(accepted) = parts.extensions.get::<Arrival>().cloned().ok_or_else(missing)?;
        let tags = Tags::from_request_parts(parts, state).await?;
        let beta = parts.headers.get_all(BETA).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>();
        let version = parts.headers.get(VERSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let beta = Some(beta.join(",")).filter(|beta| !beta.is_empty());
        Ok(Self { caller, id, accepted, tags, anthropic: AnthropicHeaders { version, beta } })
    }
}

/// Answers a conversation, whole or as a stream, in the dialect in which it is asked for.
pub(crate) async fn answer(
    edge: Shared,
    asked: Asked,
    dialect: ClientDialect,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let inbound = Inbound::parse(dialect, &received).map_err(EdgeError::from)?;
    let is_streamed = inbound.is_streamed();
    let caller = asked.caller.clone();
    let ready = prepare(&edge, asked, &received, &inbound).await?;
    drop(inbound);
    drop(received);
    if is_streamed { stream(edge, &caller, ready).await } else { whole(&edge, &caller, ready).await }
}

async fn whole(edge: &Shared, caller: &Caller, ready: Ready) -> Result<Response, Failure> {
    let Ready { mut call, mut headers, mut itinerary, .. } = ready;
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(edge, caller, *call, overruling, headers));
    }
    let mut attempts = itinerary.attempts(edge, call.sent());
    let answer = tokio::select! {
        biased;
        answer = itinerary.send(&edge.providers, &mut attempts) => Ok(answer),
        interruption = interrupted(caller, &mut call) => Err(interruption),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(interruption) => {
            return Err(settle_interrupted(edge, caller, *call, interruption, headers));
        }
    };
    let family = itinerary.note(&attempts, &mut call, Some(&mut headers));
    let mut answer = match answer {
        Ok(Answer::Json(answer)) => answer,
        Ok(Answer::Stream(_)) => return Err(EdgeError::internal("a stream was not asked for").into()),
        Err(error) => {
            settle_failed(*call, &error);
            return Err(Failure::with(error, headers));
        }
    };
    call.first_byte();
    used(&mut call, answer.usage, || output(family, &answer.delivered, answer.counted_output));
    call.finish(Ending::Complete, 200, None);
    if let Some(member) = itinerary.member() {
        answer.add_member("ragmux", member);
    }
    Ok(json::answer(StatusCode::OK, headers, answer.body))
}

async fn stream(edge: Shared, caller: &Caller, ready: Ready) -> Result<Response, Failure> {
    let Ready { id, mut call, mut headers, itinerary, dialect } = ready;
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(&edge, caller, *call, overruling, headers));
    }
    let is_owed = call.sent();
    let mut early = headers.clone();
    itinerary.foretell(&mut early);
    let mut connecting = connect(&edge, itinerary, is_owed);
    // Until the provider's first event the status is open: a failure is an answer of its own, with its own status.
    let first = {
        let waited = async {
            match edge.commit_after {
                Some(limit) => timeout(limit, &mut connecting).await.ok(),
                None => Some((&mut connecting).await),
            }
        };
        tokio::select! {
            biased;
            first = waited => Ok(first),
            interruption = interrupted(caller, &mut call) => Err(interruption),
        }
    };
    let first = match first {
        Ok(first) => first,
        Err(interruption) => {
            return Err(settle_interrupted(&edge, caller, *call, interruption, headers));
        }
    };
    let relay = match first {
        Some((itinerary, attempts, answer)) => {
            let family = itinerary.note(&attempts, &mut call, Some(&mut headers));
            match answer {
                Ok(Answer::Stream(stream)) => Relay::streaming(&edge, caller, id, dialect, call, family, stream),
                Ok(Answer::Json(_)) => {
                    let error = UpstreamError::BadAnswer("it is not a stream");
                    settle_failed(*call, &error);
                    return Err(Failure::with(error, headers));
                }
                Err(error) => {
                    settle_failed(*call, &error);
                    return Err(Failure::with(error, headers));
                }
            }
        }
        None => {
            headers = early;
            Relay::connecting(&edge, caller, id, dialect, call, connecting)
        }
    };
    let mut response = Response::new(Body::from_stream(relay.into_stream().map(Ok::<_, std::convert::Infallible>)));
    *response.headers_mut() = headers;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Reverse proxies that buffer answers are asked not to.
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}
