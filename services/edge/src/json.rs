//! Answers of one JSON body.

use axum::body::Body;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use crate::error::EdgeError;

/// One of a body that is JSON already.
pub(crate) fn answer(status: StatusCode, headers: HeaderMap, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// What was asked for, as JSON.
///
/// # Errors
/// It has no JSON form.
pub(crate) fn of(value: &impl Serialize, headers: HeaderMap) -> Result<Response, EdgeError> {
    let body = serde_json::to_vec(value).map_err(EdgeError::internal)?;
    Ok(answer(StatusCode::OK, headers, body))
}
