//! Reading request bodies: whole, within their limit, and within what the process has for all of them.

use std::error::Error;

use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use providers::{Held, Memory};

use crate::error::EdgeError;

/// The largest body, in bytes.
const LIMIT: u64 = 32 * 1024 * 1024;

/// Reads bodies into the memory that there is for them.
pub(crate) struct Bodies {
    memory: Memory,
    limit: u64,
}

impl Bodies {
    /// `memory` is for answers, too.
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, limit: LIMIT }
    }

    /// Reads a body to its end. The listener ends one that stands still. The memory is given back when the last clone of
    /// the bytes is gone: work on them may outlive its call.
    pub(crate) async fn read(&self, request: Request) -> Result<Bytes, EdgeError> {
        let announced = self.check(request.headers())?;
        let mut held = Held::default();
        let mut bytes = BytesMut::with_capacity(announced.min(64 * 1024));
        let mut stream = request.into_body().into_data_stream();
        while let Some(piece) = stream.try_next().await.map_err(|error| broken(&error))? {
            let length = bytes.len() + piece.len();
            if length as u64 > self.limit {
                return Err(EdgeError::TooLarge { limit_bytes: self.limit });
            }
            self.memory.grow(&mut held, length).map_err(|_| EdgeError::Overloaded)?;
            bytes.extend_from_slice(&piece);
        }
        Ok(held.by(bytes.freeze()))
    }

    /// The length the client announces, 0 when it does not.
    fn check(&self, headers: &HeaderMap) -> Result<usize, EdgeError> {
        if headers.get_all(CONTENT_ENCODING).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(EdgeError::Encoded);
        }
        let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        match announced {
            Some(length) if length > self.limit => Err(EdgeError::TooLarge { limit_bytes: self.limit }),
            Some(length) => Ok(usize::try_from(length).unwrap_or(0)),
            None => Ok(0),
        }
    }
}

fn broken(error: &axum::Error) -> EdgeError {
    let mut source: Option<&dyn Error> = Some(error);
    while let Some(cause) = source {
        if cause.is::<tower_http::timeout::TimeoutError>() {
            return EdgeError::BodySlow;
        }
        source = cause.source();
    }
    EdgeError::BodyBroken
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bodies(limit: u64, together: u64) -> Bodies {
        Bodies { memory: Memory::of(together), limit }
    }

    fn request(bytes: usize) -> Request {
        Request::new(axum::body::Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_announced_or_not() {
        let bodies = self::bodies(100, 10_000);
        assert_eq!(bodies.read(request(100)).await.unwrap().len(), 100);
        assert!(matches!(bodies.read(request(101)).await, Err(EdgeError::TooLarge { limit_bytes: 100 })));
        let mut announced = request(1);
        announced.headers_mut().insert(CONTENT_LENGTH, 101.into());
        assert!(matches!(bodies.read(announced).await, Err(EdgeError::TooLarge { .. })));
    }

    #[tokio::test]
    async fn all_bodies_together_have_a_limit_and_give_back_what_they_took() {
        let bodies = self::bodies(4096, 4096);
        let first = bodies.read(request(3000)).await.unwrap();
        assert!(matches!(bodies.read(request(2000)).await, Err(EdgeError::Overloaded)));
        let outlives_its_call = first.clone();
        drop(first);
        assert!(matches!(bodies.read(request(2000)).await, Err(EdgeError::Overloaded)));
        drop(outlives_its_call);
        assert!(bodies.read(request(2000)).await.is_ok());
    }

    #[tokio::test]
    async fn compressed_bodies_are_refused() {
        let bodies = self::bodies(LIMIT, 1 << 20);
        let encoded = |encoding: &'static str| {
            let mut request = request(1);
            request.headers_mut().insert(CONTENT_ENCODING, encoding.parse().unwrap());
            request
        };
        assert!(matches!(bodies.read(encoded("gzip")).await, Err(EdgeError::Encoded)));
        assert!(bodies.read(encoded("Identity")).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_in_time_is_told_from_one_that_breaks_off() {
        let never = axum::body::Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let slow = axum::body::Body::new(tower_http::timeout::TimeoutBody::new(Duration::from_millis(1), never));
        let bodies = self::bodies(LIMIT, 1 << 20);
        assert!(matches!(bodies.read(Request::new(slow)).await, Err(EdgeError::BodySlow)));
        let pieces = [Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("reset"))];
        let broken = axum::body::Body::from_stream(futures::stream::iter(pieces));
        assert!(matches!(bodies.read(Request::new(broken)).await, Err(EdgeError::BodyBroken)));
    }
}
