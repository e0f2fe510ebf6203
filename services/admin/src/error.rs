//! Why a request is not answered as asked. What a client is told of it is decided in [`crate::rescue`].

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use domain::DocumentFailure;
use http::{Method, StatusCode};
use providers::UpstreamError;
use retrieval::RetrievalError;
use store::StoreError;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("not found")]
    NotFound,
    #[error("this route does not take {0}")]
    MethodNotAllowed(Method),
    #[error("{0}")]
    Invalid(String),
    #[error("{}", .0.sentence())]
    File(DocumentFailure),
    #[error("authentication required")]
    Unauthenticated,
    #[error("the user name or the password is wrong")]
    WrongPassword,
    #[error("insufficient role")]
    RoleTooLow,
    #[error("cross-site request rejected")]
    CrossSite,
    #[error("an item with that name already exists")]
    Taken,
    #[error("setup already completed")]
    SetupDone,
    #[error("item is still referenced by a project or RAG store")]
    Referenced,
    #[error(
        "a RAG store embeds with this connection: its model and its provider type stay; make another connection for \
         another model"
    )]
    ConnectionInUse,
    #[error("calls were made under this project; its history keeps it from being deleted")]
    HasUsage,
    #[error("the item was changed or locked by somebody else meanwhile; read it again and repeat")]
    Changed,
    #[error("Content-Type must be {0}")]
    MediaType(&'static str),
    #[error("a body with a Content-Encoding is not taken: send it as it is")]
    Encoded,
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    Quota(String),
    #[error("the body did not arrive completely")]
    BodyBroken,
    #[error("the body did not arrive in time")]
    BodySlow,
    #[error("too many failed attempts to sign in; try again later")]
    Throttled { retry_after: Duration, locked: bool },
    #[error(
        "{limit} documents wait to be ingested already (MAX_PENDING_DOCUMENTS); nothing was stored, try again later"
    )]
    Backlog { limit: i64 },
    #[error("the service is starting")]
    Starting,
    #[error("the service is busy; try again in a moment")]
    Busy,
    #[error("the credential of the connection cannot be opened with this SECRET_KEY; enter it again")]
    CredentialUnreadable,
    /// Says of itself what the log may have; the client gets the provider's own words.
    #[error(transparent)]
    Upstream(UpstreamError),
    #[error("the store cannot be searched now: every leg of the search that is needed failed")]
    NotSearched,
    #[error("the database is not available")]
    Unavailable(#[source] StoreError),
    #[error("internal error")]
    Internal(#[source] Box<dyn Error + Send + Sync>),
}

impl ApiError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn internal(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Internal(error.into())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::NotFound,
            StoreError::AlreadyExists { .. } => Self::Taken,
            StoreError::Referenced { .. } => Self::Referenced,
            StoreError::Conflict => Self::Changed,
            StoreError::Invalid { constraint } => Self::Invalid(format!("a value is not allowed ({constraint})")),
            StoreError::EpochChanged
            | StoreError::InstanceLost
            | StoreError::Unavailable { .. }
            | StoreError::Timeout { .. } => Self::Unavailable(error),
            StoreError::Unexpected { .. } => Self::internal(error),
        }
    }
}

impl From<RetrievalError> for ApiError {
    fn from(error: RetrievalError) -> Self {
        match error {
            RetrievalError::NoStore => Self::NotFound,
            RetrievalError::Store(error) => error.into(),
            RetrievalError::AllLegsFailed => Self::NotSearched,
        }
    }
}

impl From<UpstreamError> for ApiError {
    fn from(error: UpstreamError) -> Self {
        Self::Upstream(error)
    }
}

impl IntoResponse for ApiError {
    /// An empty answer that carries the failure to [`crate::rescue`].
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}
