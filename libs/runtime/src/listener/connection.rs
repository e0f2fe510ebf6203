//! The life of one connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;
use tower_http::timeout::TimeoutBody;

use super::Shared;
use super::activity::{Activity, Verdict};
use super::io::Watched;
use super::progress::Progress;

/// How long a client that has connected, but sent nothing yet, is waited for when the listener drains: its request may
/// be on the way.
const FRESH_GRACE: Duration = Duration::from_millis(250);

/// Serves one connection to its end.
pub(super) async fn serve(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    // Answers are streamed in small pieces; waiting to fill a packet would hold each back. It fails only on a
    // connection that is gone.
    let _ = stream.set_nodelay(true);
    let activity = Arc::new(Activity::new(shared.limits));
    let io = TokioIo::new(Watched { stream, activity: Arc::clone(&activity) });
    let service = service_fn(|request| call(request, peer, Arc::clone(&shared), Arc::clone(&activity)));
    let mut connection = pin!(shared.protocol.serve_connection(io, service));

    let mut leaves = pin!(async {
        shared.leaving.cancelled().await;
        activity.speaks_http2().await;
    });
    let mut drains = pin!(async {
        shared.draining.cancelled().await;
        let _ = timeout(FRESH_GRACE, activity.first_call()).await;
    });
    let (mut has_left, mut has_drained) = (false, false);
    let mut must_end_by: Option<Instant> = None;
    loop {
        let deadline = activity.deadline();
        let overdue = async {
            match (deadline, must_end_by) {
                (Some((_, Verdict::Leave)), Some(at)) => {
                    sleep_until(at).await;
                    Verdict::Cut
                }
                (Some((at, verdict)), _) => {
                    sleep_until(at).await;
                    verdict
                }
                (None, _) => std::future::pending().await,
            }
        };
        tokio::select! {
            // A connection that fails has failed for its client, which knows better; there is nobody else to tell.
            _ = &mut connection => return,
            () = shared.closed.cancelled() => return,
            verdict = overdue => match verdict {
                Verdict::Cut => return,
                Verdict::Look => match activity.look() {
                    0 => {}
                    calls => tracing::debug!(calls, "gave up calls whose client took nothing of their answers"),
                },
                Verdict::Leave => {
                    connection.as_mut().graceful_shutdown();
                    must_end_by = Some(Instant::now() + shared.limits.header);
                }
            },
            () = &mut leaves, if !has_left => {
                has_left = true;
                connection.as_mut().graceful_shutdown();
            }
            () = &mut drains, if !has_drained => {
                has_drained = true;
                connection.as_mut().graceful_shutdown();
            }
            () = activity.changed() => {}
        }
    }
}

async fn call(
    request: Request<Incoming>,
    peer: SocketAddr,
    shared: Arc<Shared>,
    activity: Arc<Activity>,
) -> Result<Response<Answer>, Infallible> {
    let in_flight = InFlight::begin(activity, Arc::clone(&shared));
    let keeps_open = request.version() == Version::HTTP_11;
    let mut request = request.map(|body| Body::new(TimeoutBody::new(shared.limits.body_idle, body)));
    request.extensions_mut().insert(ConnectInfo(peer));
    let Ok(mut response) = shared.router.clone().oneshot(request).await;
    if keeps_open && shared.leaving.is_cancelled() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(progress) = &in_flight.progress {
        progress.is_turn_of(true);
    }
    Ok(response.map(|body| Answer { body, in_flight }))
}

/// A call from its header to the end of its answer, or until its client went away.
struct InFlight {
    activity: Arc<Activity>,
    shared: Arc<Shared>,
    /// Of an HTTP/2 call.
    progress: Option<Arc<Progress>>,
}

impl InFlight {
    fn begin(activity: Arc<Activity>, shared: Arc<Shared>) -> Self {
        let progress = Progress::of_this_task();
        activity.call_begins(progress.as_ref());
        shared.calls.fetch_add(1, Ordering::Relaxed);
        Self { activity, shared, progress }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.shared.calls.fetch_sub(1, Ordering::Relaxed);
        self.activity.call_ends(self.progress.as_ref());
    }
}

/// The body of an answer, which keeps its call in flight.
struct Answer {
    body: Body,
    in_flight: InFlight,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Some(progress) = &self.in_flight.progress {
            // What there is goes to the client, who has to make room before this is asked for more.
            progress.is_turn_of(polled.is_ready());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
