//! JSON bodies and queries.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use tokio::time::timeout;

use crate::error::ApiError;

const LIMIT_BYTES: usize = 1024 * 1024;
const PATIENCE: Duration = Duration::from_secs(30);

/// A JSON body of at most 1 MiB.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        refuse_encoded(&parts.headers)?;
        // A form of another site cannot have this type without asking first, which keeps it out.
        if !is_type(&parts.headers, "application/json") {
            return Err(ApiError::MediaType("application/json"));
        }
        let bytes = read(body).await?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| ApiError::invalid(format!("the body is not what this route takes: {error}")))
    }
}

/// A query string.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(params) = Query::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::invalid(format!("the query string is not what this route takes: {error}")))?;
        Ok(Self(params))
    }
}

/// Refuses a body that would have to be decoded first.
pub(crate) fn refuse_encoded(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    if encodings.all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        Ok(())
    } else {
        Err(ApiError::Encoded)
    }
}

/// Whether the body says that it is of a media type, whatever the parameters.
pub(crate) fn is_type(headers: &HeaderMap, expected: &str) -> bool {
    let declared = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    declared.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(expected)
}

async fn read(body: Body) -> Result<Bytes, ApiError> {
    let collected =
        timeout(PATIENCE, Limited::new(body, LIMIT_BYTES).collect()).await.map_err(|_| ApiError::BodySlow)?;
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(ApiError::TooLarge("the body is larger than the limit of 1 MiB".to_owned()))
        }
        Err(_) => Err(ApiError::BodyBroken),
    }
}

/// For a member that may be left out (it stays as it is), be `null` (it is taken away) or have a value.
pub(crate) fn nullable<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Some)
}
