//! The one place where failures become answers, in the shape of the dialect that was spoken.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use domain::RequestId;
use futures::FutureExt;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};
use time::OffsetDateTime;

use crate::admission::limits_of_messages;
use crate::error::{EdgeError, Face, Failure, Shape};
use crate::header_names::{PROJECTS, REQUEST_ID, SHOULD_RETRY};
use crate::header_text;
use crate::json;

/// What the header of projects has at most, in bytes.
const LONGEST_LIST: usize = 4096;

/// Turns failures, and panics of a handler, into answers.
pub(crate) async fn rescue(request: Request, next: Next) -> Response {
    let id = request.extensions().get::<RequestId>().copied();
    let shape = Shape::of(request.uri().path());
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        // The hook of the process has logged where; what it said may quote the call.
        Err(_) => {
            return answer(shape, &Failure::from(EdgeError::internal("a handler panicked")), id, &HeaderMap::new());
        }
    };
    let mut response = match response.extensions_mut().remove::<Arc<Failure>>() {
        Some(failure) => answer(shape, &failure, id, response.headers()),
        None => response,
    };
    if shape == Shape::Messages {
        limits_of_messages(response.headers_mut(), OffsetDateTime::now_utc());
        // By the name that clients of this API look for.
        if let Some(value) = id.and_then(|id| HeaderValue::from_str(&id.to_string()).ok()) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
    }
    response
}

fn answer(shape: Shape, failure: &Failure, id: Option<RequestId>, own: &HeaderMap) -> Response {
    let mut face = failure.error.face();
    log(&failure.error, &face);
    if matches!(failure.error, EdgeError::Internal(_))
        && let Some(id) = id
    {
        face.message = format!("{}; its log has it under the request id {id}", face.message);
    }
    let mut response = json::answer(face.status, failure.headers.clone(), shape.body(&face, id));
    let headers = response.headers_mut();
    if let Some(allow) = own.get(ALLOW) {
        headers.insert(ALLOW, allow.clone());
    }
    if face.status == http::StatusCode::UNAUTHORIZED {
        // RFC 9110, 11.6.1: a 401 names a scheme.
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(after) = face.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
    }
    if face.final_for_now {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    if let EdgeError::ProjectRequired { projects } = &failure.error
        && let Some(value) = header_text::list(projects, LONGEST_LIST)
    {
        headers.insert(PROJECTS, value);
    }
    response
}

/// Failures of ours and of providers are for the log; what a client got wrong is for the client.
fn log(error: &EdgeError, face: &Face<'_>) {
    let status = face.status.as_u16();
    // The code of a provider's error is the provider's to choose, and may quote the call.
    let code = face.code.as_deref().filter(|_| !matches!(error, EdgeError::Upstream(_)));
    let cause: &dyn Error = error;
    match error {
        EdgeError::Internal(source) => {
            let error: &dyn Error = &**source;
            tracing::error!(error, status, "a call failed by a fault of ours");
        }
        EdgeError::Upstream(source) if status >= 500 || status == 429 => {
            let error: &dyn Error = &**source;
            tracing::warn!(error, status, "a provider failed a call");
        }
        _ if status >= 500 => tracing::warn!(error = cause, status, code, "a call could not be served"),
        _ => tracing::debug!(status, code, "a call was refused"),
    }
}

fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use http::StatusCode;
    use http_body_util::BodyExt;
    use tower::{ServiceBuilder, ServiceExt};

    use super::*;
    use crate::routes::request_id;

    async fn told(router: Router) -> (Response<()>, serde_json::Value) {
        let layers = ServiceBuilder::new().layer(from_fn(request_id::assign)).layer(from_fn(rescue));
        let answer = router.layer(layers).oneshot(Request::get("/").body(axum::body::Body::empty()).unwrap()).await;
        let (parts, body) = answer.unwrap().into_parts();
        let body = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
        (Response::from_parts(parts, ()), body)
    }

    async fn panics() -> Response {
        panic!("quotes the prompt")
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_error_that_names_the_request_and_nothing_else() {
        let (answer, body) = told(Router::new().route("/", get(panics))).await;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let id = answer.headers()["x-request-id"].to_str().unwrap();
        assert_eq!(
            body,
            serde_json::json!({ "error": {
                "message": format!("internal error; its log has it under the request id {id}"),
                "type": "server_error", "param": null, "code": "internal_error",
            } })
        );
    }

    #[tokio::test]
    async fn an_answer_that_is_no_failure_is_left_alone() {
        let (answer, body) = told(Router::new().route("/", get(async || (StatusCode::IM_A_TEAPOT, "{}")))).await;
        assert_eq!((answer.status(), body), (StatusCode::IM_A_TEAPOT, serde_json::json!({})));
    }
}
