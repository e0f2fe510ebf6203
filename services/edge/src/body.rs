//! Reading request bodies: whole, within their limit, and within what the process has for all of them.

use std::error::Error;
use std::sync::Arc;

use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use config::Size;
use futures::TryStreamExt;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::EdgeError;

/// The largest body, in bytes.
const LIMIT: u64 = 32 * 1024 * 1024;

/// Bytes are counted in units of this size.
const UNIT: u64 = 1024;

/// The memory for bodies.
pub(crate) struct Bodies {
    units: Arc<Semaphore>,
    limit: u64,
}

/// A body, and its part of the memory.
struct Body {
    bytes: Bytes,
    _held: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bodies {
    /// Room for bodies of `together` bytes. A call's outgoing body is of the same size again, so this is about half of
    /// what they cost.
    pub(crate) fn new(together: Size) -> Self {
        Self::with(LIMIT, together.as_bytes())
    }

    fn with(limit: u64, together: u64) -> Self {
        Self { units: Arc::new(Semaphore::new(usize::try_from(together / UNIT).unwrap_or(usize::MAX))), limit }
    }

    /// Reads a body to its end. The listener ends one that stands still. The memory is given back when the last clone of
    /// the bytes is gone: work on them may outlive its call.
    pub(crate) async fn read(&self, request: Request) -> Result<Bytes, EdgeError> {
        let announced = self.check(request.headers())?;
        let mut held: Option<OwnedSemaphorePermit> = None;
        let mut bytes = BytesMut::with_capacity(announced.min(64 * 1024));
        let mut stream = request.into_body().into_data_stream();
        while let Some(piece) = stream.try_next().await.map_err(|error| broken(&error))? {
            let length = (bytes.len() + piece.len()) as u64;
            if length > self.limit {
                return Err(EdgeError::TooLarge { limit_bytes: self.limit });
            }
            self.grow(&mut held, length)?;
            bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from_owner(Body { bytes: bytes.freeze(), _held: held }))
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

    /// Takes memory up to that length.
    fn grow(&self, held: &mut Option<OwnedSemaphorePermit>, length: u64) -> Result<(), EdgeError> {
        let wanted = usize::try_from(length.div_ceil(UNIT)).unwrap_or(usize::MAX);
        let missing = wanted.saturating_sub(held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if missing == 0 {
            return Ok(());
        }
        let more = u32::try_from(missing)
            .ok()
            .and_then(|missing| Arc::clone(&self.units).try_acquire_many_owned(missing).ok())
            .ok_or(EdgeError::Overloaded)?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
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

    fn request(bytes: usize) -> Request {
        Request::new(axum::body::Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_announced_or_not() {
        let bodies = Bodies::with(100, 10_000);
        assert_eq!(bodies.read(request(100)).await.unwrap().len(), 100);
        assert!(matches!(bodies.read(request(101)).await, Err(EdgeError::TooLarge { limit_bytes: 100 })));
        let mut announced = request(1);
        announced.headers_mut().insert(CONTENT_LENGTH, 101.into());
        assert!(matches!(bodies.read(announced).await, Err(EdgeError::TooLarge { .. })));
    }

    #[tokio::test]
    async fn all_bodies_together_have_a_limit_and_give_back_what_they_took() {
        let bodies = Bodies::with(4096, 4096);
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
        let bodies = Bodies::new(Size::mebibytes(1));
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
        let bodies = Bodies::new(Size::mebibytes(1));
        assert!(matches!(bodies.read(Request::new(slow)).await, Err(EdgeError::BodySlow)));
        let pieces = [Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("reset"))];
        let broken = axum::body::Body::from_stream(futures::stream::iter(pieces));
        assert!(matches!(bodies.read(Request::new(broken)).await, Err(EdgeError::BodyBroken)));
    }
}
