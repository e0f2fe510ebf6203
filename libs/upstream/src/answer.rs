//! An answer before it is put on the wire.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde::Serialize;

use crate::error::ApiError;

/// What a route has to say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// One body.
    Whole { status: StatusCode, content_type: String, body: Vec<u8> },
    /// Server-sent events, each with its line ends.
    Events(Vec<Vec<u8>>),
    /// Lines of JSON, each with its end.
    Lines(Vec<Vec<u8>>),
}

impl Answer {
    pub(crate) fn json(body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self::whole(StatusCode::OK, body),
            Err(error) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into(),
        }
    }

    pub(crate) fn whole(status: StatusCode, body: Vec<u8>) -> Self {
        Self::Whole { status, content_type: "application/json".to_owned(), body }
    }
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Self {
        Self::whole(error.status, error.body())
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Milliseconds since 1970.
pub(crate) fn unix_millis() -> u64 {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970.
pub(crate) fn unix_nanos() -> u64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    u64::try_from(nanos).unwrap_or(u64::MAX)
}
