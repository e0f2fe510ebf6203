//! `POST /v1/chat/completions`.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use domain::RequestId;
use futures::StreamExt;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use ledger::Ending;
use providers::{Answer, Attempts, ChatAnswer, ChatRequest, UpstreamError};
use tokio::time::timeout;

use super::prepare::{Ready, prepare};
use super::relay::{Relay, connect};
use crate::admission::{
    Tags, interrupted, output, overruled_by_now, reported, settle_failed, settle_interrupted, settle_unsent,
};
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::routes::request_id::Arrival;
use crate::state::Shared;

pub(super) const ATTEMPTS: HeaderName = HeaderName::from_static("x-ragmux-attempts");
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Answers a conversation, whole or as a stream.
pub(crate) async fn create(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Extension(Arrival(accepted)): Extension<Arrival>,
    tags: Tags,
    request: Request,
) -> Result<Response, Failure> {
    let received = edge.bodies.read(request).await?;
    let request = ChatRequest::parse(&received).map_err(EdgeError::from)?;
    let ready = prepare(&edge, &caller, id, accepted, &received, &request, tags).await?;
    if ready.upstream.stream {
        stream(edge, &caller, ready, received).await
    } else {
        whole(&edge, &caller, ready).await
    }
}

async fn whole(edge: &Shared, caller: &Caller, ready: Ready) -> Result<Response, Failure> {
    let Ready { mut call, mut headers, connection, upstream, family, member, .. } = ready;
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(edge, caller, *call, overruling, headers));
    }
    let mut attempts = Attempts::until(tokio::time::Instant::now() + edge.call_limit);
    call.sent();
    let answer = tokio::select! {
        biased;
        answer = edge.providers.chat(&connection, &upstream, &mut attempts) => Ok(answer),
        interruption = interrupted(edge, &mut call) => Err(interruption),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(interruption) => {
            return Err(settle_interrupted(edge, caller, *call, interruption, headers));
        }
    };
    note_attempts(&mut headers, &attempts);
    call.entry_mut().attempts = made(&attempts);
    let mut answer = match answer {
        Ok(Answer::Json(answer)) => answer,
        Ok(Answer::Stream(_)) => return Err(EdgeError::internal("a stream was not asked for").into()),
        Err(error) => {
            settle_failed(*call, &error);
            return Err(Failure::with(error, headers));
        }
    };
    call.first_byte();
    match answer.usage {
        Some(usage) => call.usage(reported(usage)),
        None => call.delivered(output(family, &answer.delivered, answer.counted_output)),
    }
    call.finish(Ending::Complete, 200, None);
    if let Some(member) = member {
        answer.add_member("ragmux", &member);
    }
    Ok(json(answer, headers))
}

fn json(answer: ChatAnswer, headers: HeaderMap) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.headers_mut() = headers;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn stream(edge: Shared, caller: &Caller, ready: Ready, received: Bytes) -> Result<Response, Failure> {
    let Ready { id, mut call, mut headers, connection, upstream, family, .. } = ready;
    if let Some(overruling) = overruled_by_now(&mut call) {
        return Err(settle_unsent(&edge, caller, *call, overruling, headers));
    }
    call.sent();
    let mut connecting = connect(&edge, connection, upstream, received);
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
            interruption = interrupted(&edge, &mut call) => Err(interruption),
        }
    };
    let first = match first {
        Ok(first) => first,
        Err(interruption) => {
            return Err(settle_interrupted(&edge, caller, *call, interruption, headers));
        }
    };
    let relay = match first {
        Some((attempts, answer)) => {
            note_attempts(&mut headers, &attempts);
            call.entry_mut().attempts = made(&attempts);
            match answer {
                Ok(Answer::Stream(stream)) => Relay::streaming(&edge, id, call, family, stream),
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
        None => Relay::connecting(&edge, id, call, family, connecting),
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

fn note_attempts(headers: &mut HeaderMap, attempts: &Attempts) {
    headers.insert(ATTEMPTS, HeaderValue::from(attempts.made()));
}

pub(super) fn made(attempts: &Attempts) -> i32 {
    i32::try_from(attempts.made()).unwrap_or(i32::MAX)
}
