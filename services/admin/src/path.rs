//! Ids in paths.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;

use crate::error::ApiError;

/// The id in the path of a route that has one. What is no id names nothing, so it is not found.
pub(crate) struct Id<T>(pub(crate) T);

/// The ids in the path of a route that has two.
pub(crate) struct Ids<T, U>(pub(crate) T, pub(crate) U);

impl<T: From<i64>, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let ids = ids(parts, state).await?;
        ids.first().map(|id| Self((*id).into())).ok_or(ApiError::NotFound)
    }
}

impl<T: From<i64>, U: From<i64>, S: Send + Sync> FromRequestParts<S> for Ids<T, U> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match ids(parts, state).await?.as_slice() {
            [first, second, ..] => Ok(Self((*first).into(), (*second).into())),
            _ => Err(ApiError::NotFound),
        }
    }
}

async fn ids<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<Vec<i64>, ApiError> {
    let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| ApiError::NotFound)?;
    params.iter().map(|(_, text)| text.parse().map_err(|_| ApiError::NotFound)).collect()
}
