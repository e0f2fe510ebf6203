//! The bytes of an upload on their way into the form's parser.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::multipart::MultipartError;
use axum::extract::{FromRequest, Multipart, Request};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use crate::error::ApiError;

/// What is still read of an upload that was refused.
const DISCARD_BYTES: usize = 128 * 1024 * 1024;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// What a form may have beside its files: boundaries, headers, fields of text. The parser keeps an unfinished header in
/// memory, so this bounds that too.
pub(in crate::routes::documents) const FORM_BYTES: usize = 1024 * 1024;

/// A request's body, read by the form and, when the upload is refused, to its end by nobody.
#[derive(Clone)]
pub(in crate::routes::documents) struct Source {
    body: Arc<Mutex<BodyDataStream>>,
    /// Bytes that the form was given and that were no bytes of a file.
    beside: Arc<AtomicUsize>,
}

impl Source {
    pub(in crate::routes::documents) fn new(body: Body) -> Self {
        Self { body: Arc::new(Mutex::new(body.into_data_stream())), beside: Arc::default() }
    }

    /// Tells that the form has handed out that many bytes of a file.
    pub(super) fn delivered(&self, bytes: usize) {
        self.beside.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// What an error of the form means. The body may end early, or be no form.
    pub(in crate::routes::documents) fn failure(&self, error: &MultipartError) -> ApiError {
        if self.beside.load(Ordering::Relaxed) > FORM_BYTES {
            return ApiError::invalid("the form has more than 1 MiB beside its files");
        }
        match error.status() {
            StatusCode::INTERNAL_SERVER_ERROR => ApiError::BodyBroken,
            _ => ApiError::invalid("the body is not a complete multipart form"),
        }
    }

    /// The form that the body is.
    pub(in crate::routes::documents) async fn form(&self, parts: Parts) -> Result<Multipart, ApiError> {
        let body = Body::from_stream(Paced { source: self.clone(), rested: true });
        Multipart::from_request(Request::from_parts(parts, body), &())
            .await
            .map_err(|_| ApiError::MediaType("multipart/form-data with a boundary"))
    }

    /// Reads on for a while and forgets it. Clients that look for an answer only after they have sent everything would
    /// else see a broken connection instead of the reason. One that waits to be asked for the body need not send it.
    pub(in crate::routes::documents) async fn discard(mut self, headers: &HeaderMap) {
        if headers.contains_key(EXPECT) {
            return;
        }
        let reading = async {
            let mut read = 0;
            while let Some(Ok(chunk)) = self.next().await {
                read += chunk.len();
                if read > DISCARD_BYTES {
                    return;
                }
            }
        };
        // Out of time is as good as done.
        let _ = timeout(DISCARD_TIME, reading).await;
    }
}

impl Stream for Source {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).poll_next_unpin(context)
    }
}

/// Gives way after each piece. The form's parser takes from its stream as long as there is something, which would be a
/// whole upload when the client is faster than the database.
struct Paced {
    source: Source,
    rested: bool,
}

impl Stream for Paced {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.rested {
            self.rested = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = self.source.poll_next_unpin(context);
        self.rested = !polled.is_ready();
        if let Poll::Ready(Some(Ok(bytes))) = &polled {
            let before = self.source.beside.fetch_add(bytes.len(), Ordering::Relaxed);
            // The newest piece may be of a file; it is known when it was handed out.
            if before > FORM_BYTES {
                return Poll::Ready(Some(Err(axum::Error::new(TooMuchForm))));
            }
        }
        polled
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the form has too much beside its files")]
struct TooMuchForm;

#[cfg(test)]
mod tests {
    use futures::stream;
    use http::Request;

    use super::*;

    #[tokio::test]
    async fn no_more_is_taken_from_a_fast_client_than_was_asked_for() {
        const PIECES: usize = 100;
        let taken = Arc::new(AtomicUsize::new(0));
        let head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
        let counted = Arc::clone(&taken);
        let pieces = stream::iter(0..PIECES).map(move |piece| {
            counted.fetch_add(1, Ordering::Relaxed);
            let text = if piece == 0 { head.to_owned() } else { "x".repeat(16_384) };
            Ok::<_, std::io::Error>(Bytes::from(text))
        });
        let source = Source::new(Body::from_stream(pieces));
        let request = Request::post("/").header("content-type", "multipart/form-data; boundary=b").body(()).unwrap();
        let mut form = source.form(request.into_parts().0).await.unwrap();
        let mut field = form.next_field().await.unwrap().unwrap();
        for _ in 0..10 {
            field.chunk().await.unwrap().unwrap();
        }
        let taken = taken.load(Ordering::Relaxed);
        assert!(taken <= 12, "{taken} pieces were taken for 10 that were read");
    }

    #[tokio::test]
    async fn a_form_that_is_all_header_is_given_up() {
        let pieces = stream::iter(0..).map(|piece| {
            let text = if piece == 0 { "--b\r\nX: ".to_owned() } else { "x".repeat(16_384) };
            Ok::<_, std::io::Error>(Bytes::from(text))
        });
        let source = Source::new(Body::from_stream(pieces));
        let request = Request::post("/").header("content-type", "multipart/form-data; boundary=b").body(()).unwrap();
        let mut form = source.form(request.into_parts().0).await.unwrap();
        let error = form.next_field().await.unwrap_err();
        assert!(source.failure(&error).to_string().contains("more than 1 MiB beside its files"));
    }
}
