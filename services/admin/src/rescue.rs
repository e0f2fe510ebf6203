//! The one place where failures become answers.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::{DocumentFailure, RequestId};
use futures::FutureExt;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::json;

use crate::error::ApiError;

/// What a client is told of a failure.
struct Face {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
}

/// Turns failures, and panics of a handler, into answers.
pub(crate) async fn rescue(request: Request, next: Next) -> Response {
    let id = request.extensions().get::<RequestId>().copied();
    let Ok(mut response) = AssertUnwindSafe(next.run(request)).catch_unwind().await else {
        // The hook of the process has logged where; what it said may quote the request.
        return answer(&ApiError::internal("a handler panicked"), id);
    };
    let Some(failure) = response.extensions_mut().remove::<Arc<ApiError>>() else { return response };
    let mut rescued = answer(&failure, id);
    if let Some(allow) = response.headers_mut().remove(ALLOW) {
        rescued.headers_mut().insert(ALLOW, allow);
    }
    rescued
}

fn answer(error: &ApiError, id: Option<RequestId>) -> Response {
    let face = Face::of(error);
    log(error, &face);
    let mut message = match error {
        ApiError::Upstream(error) => error.message(),
        _ => error.to_string(),
    };
    if let (ApiError::Internal(_), Some(id)) = (error, id) {
        message = format!("{message} (request id {id})");
    }
    let mut body = json!({ "message": message, "type": face.kind });
    if let (Some(code), Some(members)) = (face.code, body.as_object_mut()) {
        members.insert("code".to_owned(), code.into());
    }
    let mut response = (face.status, Json(json!({ "error": body }))).into_response();
    let headers = response.headers_mut();
    if face.status == StatusCode::UNAUTHORIZED {
        // RFC 9110, 11.6.1: a 401 names a scheme.
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(after) = face.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil() as u64));
    }
    response
}

impl Face {
    /// The type is the status in words, except where the caller's identity is the matter.
    fn new(status: StatusCode) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "unauthorized",
            StatusCode::FORBIDDEN => "forbidden",
            StatusCode::TOO_MANY_REQUESTS => "rate_limited",
            status => status.canonical_reason().unwrap_or("error"),
        };
        Self { status, kind, code: None, retry_after: None }
    }

    fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    fn after(self, seconds: u64) -> Self {
        Self { retry_after: Some(Duration::from_secs(seconds)), ..self }
    }

    fn of(error: &ApiError) -> Self {
        match error {
            ApiError::NotFound => Self::new(StatusCode::NOT_FOUND),
            ApiError::MethodNotAllowed(_) => Self::new(StatusCode::METHOD_NOT_ALLOWED),
            ApiError::Invalid(_) | ApiError::BodyBroken => Self::new(StatusCode::BAD_REQUEST),
            ApiError::File(failure @ DocumentFailure::EmptyFile) => {
                Self::new(StatusCode::BAD_REQUEST).code(failure.code())
            }
            ApiError::File(failure) => Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE).code(failure.code()),
            ApiError::Unauthenticated => Self::new(StatusCode::UNAUTHORIZED),
            ApiError::WrongPassword => Self::new(StatusCode::UNAUTHORIZED).code("invalid_credentials"),
            ApiError::RoleTooLow => Self::new(StatusCode::FORBIDDEN),
            ApiError::CrossSite => Self::new(StatusCode::FORBIDDEN).code("cross_site"),
            ApiError::Taken => Self::new(StatusCode::CONFLICT).code("name_taken"),
            ApiError::SetupDone => Self::new(StatusCode::CONFLICT).code("setup_completed"),
            ApiError::Referenced => Self::new(StatusCode::CONFLICT).code("still_referenced"),
            ApiError::ConnectionInUse => Self::new(StatusCode::CONFLICT).code("connection_in_use"),
            ApiError::HasUsage => Self::new(StatusCode::CONFLICT).code("project_has_usage"),
            ApiError::Changed => Self::new(StatusCode::CONFLICT).code("changed_meanwhile"),
            ApiError::MediaType(_) | ApiError::Encoded => Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE),
            ApiError::TooLarge(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE),
            ApiError::Quota(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY).code("store_quota"),
            ApiError::BodySlow => Self::new(StatusCode::REQUEST_TIMEOUT),
            ApiError::Throttled { retry_after, locked } => {
                let face = Self::new(StatusCode::TOO_MANY_REQUESTS).code(if *locked { "locked" } else { "throttled" });
                Self { retry_after: Some(*retry_after), ..face }
            }
            ApiError::Backlog { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE).code("ingestion_backlog").after(10),
            ApiError::Starting | ApiError::Busy => Self::new(StatusCode::SERVICE_UNAVAILABLE).after(1),
            ApiError::CredentialUnreadable => Self::new(StatusCode::SERVICE_UNAVAILABLE).code("credential_unreadable"),
            ApiError::NotSearched => Self::new(StatusCode::SERVICE_UNAVAILABLE).code("search_unavailable").after(1),
            ApiError::Upstream(_) => Self::new(StatusCode::BAD_GATEWAY).code("upstream_error"),
            ApiError::Unavailable(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE).after(1),
            ApiError::Internal(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// Failures of ours and of providers are for the log; what a client got wrong is for the client.
fn log(error: &ApiError, face: &Face) {
    let (status, code, cause): (u16, _, &dyn Error) = (face.status.as_u16(), face.code, error);
    match error {
        ApiError::Internal(_) => tracing::error!(error = cause, status, "a request failed by a fault of ours"),
        _ if status >= 500 => tracing::warn!(error = cause, status, code, "a request could not be served"),
        _ => tracing::debug!(status, code, "a request was refused"),
    }
}
