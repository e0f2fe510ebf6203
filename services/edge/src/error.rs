//! Why a call is not answered as asked. The variants are decisions; what a client is told of them is in [`Face`].

mod face;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use domain::Scope;
use http::{HeaderMap, StatusCode};
use ledger::LedgerError;
use providers::{RequestError, UpstreamError};
use retrieval::RetrievalError;
use runtime::BlockingError;
use store::StoreError;
use store::ledger::Denial;

pub(crate) use face::{Face, Limit};
pub(crate) use shape::Shape;

/// Why a key that exists may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    Revoked,
    Expired,
    OwnerInactive,
}

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EdgeError {
    #[error("an API key is needed: send it as Authorization: Bearer KEY or as x-api-key")]
    NoKey,
    #[error("the API key is not valid here")]
    BadKey,
    #[error("too many API keys that do not exist came from this address")]
    TooManyUnknownKeys { retry_after: Duration },
    #[error("{}", key_state_text(*.0))]
    KeyState(KeyState),
    #[error("the API key lacks the scope {}", .0.as_str())]
    Scope(Scope),
    #[error("the API key is granted to several projects: name one in the header X-Ragmux-Project")]
    ProjectRequired { projects: Vec<String> },
    #[error("the API key is not granted to this project")]
    ProjectNotGranted,
    #[error("there is no such route: {method} {path}")]
    NoSuchRoute { method: String, path: String },
    #[error("this route does not take {method}")]
    WrongMethod { method: String },
    #[error("the request body is larger than the limit of {limit_bytes} bytes")]
    TooLarge { limit_bytes: u64 },
    #[error("the request body has a Content-Encoding, which is not taken: send it as it is")]
    Encoded,
    #[error("the request body did not arrive completely")]
    BodyBroken,
    #[error("the request body did not arrive in time")]
    BodySlow,
    #[error("this edge has no memory left for another request")]
    Overloaded,
    #[error("too many such questions are being answered")]
    Busy,
    #[error("{0}")]
    Request(#[from] RequestError),
    #[error("there is no model {model}")]
    ModelNotFound { model: String },
    #[error("the model {model} leads to no connection")]
    NoConnection { model: String },
    #[error("the model {model} leads to providers that do not serve this API")]
    UnsupportedForModel { model: String },
    #[error("the credential of the model's connection cannot be opened")]
    CredentialUnreadable,
    #[error("the model {model} has no price, and a budget of money applies")]
    ModelUnpriced { model: String },
    #[error(
        "{path} can cost more than is held for a call, and a budget of money applies; the route does not allow {name}"
    )]
    UnpricedFeature { name: String, path: String },
    #[error("the output of {model} cannot be bounded, and the project keeps its bounds")]
    HardLimitUnsupported { model: String },
    #[error("the project has no document store")]
    NoStore,
    #[error("there is no such call of this project and key")]
    NoSuchCall,
    #[error("there is no such response: none are kept here; send the whole conversation as input of the next")]
    NoResponses,
    #[error("the document store cannot be searched")]
    Search(#[source] RetrievalError),
    #[error("a limit is reached")]
    Denied(Box<Denial>),
    /// Says of itself what the log may have; the client gets the provider's own words.
    #[error(transparent)]
    Upstream(Box<UpstreamError>),
    #[error("the service is starting")]
    Starting,
    #[error("the service is shutting down")]
    ShuttingDown,
    #[error("the service cannot reach a part it needs")]
    Unavailable(#[source] Option<StoreError>),
    #[error("internal error")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn key_state_text(state: KeyState) -> &'static str {
    match state {
        KeyState::Revoked => "the API key was revoked",
        KeyState::Expired => "the API key has expired",
        KeyState::OwnerInactive => "the owner of the API key is not active",
    }
}

/// A name or a path of the client's, cut to what an error can show.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 200;
    text.chars().take(LONGEST).collect()
}

impl EdgeError {
    pub(crate) fn internal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Internal(error.into())
    }
}

impl From<StoreError> for EdgeError {
    fn from(error: StoreError) -> Self {
        if error.is_transient() { Self::Unavailable(Some(error)) } else { Self::internal(error) }
    }
}

impl From<BlockingError> for EdgeError {
    fn from(error: BlockingError) -> Self {
        match error {
            BlockingError::Busy => Self::Overloaded,
            BlockingError::Broken(_) => Self::internal(error),
        }
    }
}

impl From<LedgerError> for EdgeError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Unavailable => Self::Unavailable(None),
            LedgerError::ShuttingDown => Self::ShuttingDown,
            LedgerError::Internal => Self::internal(error),
        }
    }
}

impl From<RetrievalError> for EdgeError {
    fn from(error: RetrievalError) -> Self {
        match error {
            RetrievalError::NoStore => Self::NoStore,
            RetrievalError::Store(error) => error.into(),
            RetrievalError::AllLegsFailed => Self::Search(error),
        }
    }
}

impl From<UpstreamError> for EdgeError {
    fn from(error: UpstreamError) -> Self {
        Self::Upstream(Box::new(error))
    }
}

/// A failed call on its way to [`crate::rescue`], with the headers that its answer carries all the same.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: EdgeError,
    pub(crate) headers: HeaderMap,
}

impl Failure {
    pub(crate) fn with(error: impl Into<EdgeError>, headers: HeaderMap) -> Self {
        Self { error: error.into(), headers }
    }
}

impl<E: Into<EdgeError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), headers: HeaderMap::new() }
    }
}

impl IntoResponse for Failure {
    /// An empty answer that carries the failure; only [`crate::rescue`] knows what it becomes.
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}
