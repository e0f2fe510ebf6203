//! Serving HTTP/1 and HTTP/2 on one port, with the limits that keep a slow or hostile client from holding resources,
//! and an orderly end.
//!
//! The end has three steps, each begun by the owner: [`Serving::ask_to_leave`] keeps serving and asks clients to go
//! elsewhere (`Connection: close`, GOAWAY); [`Serving::drain`] stops accepting and waits for the calls in flight; when
//! that takes too long, [`Cut`] tells streaming handlers to end their answers in their own protocol, and shortly after
//! that the connections are closed whatever they do.

mod activity;
mod connection;
mod io;
mod progress;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto::Builder;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::progress::Tracked;
use crate::Deadline;

/// How long handlers have to end their answers after they were told to.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// How long to rest when the process has run out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a client may take of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; more wait in the queue of the system.
    pub connections: usize,
    /// From the first byte of a request to the end of its header; also from the connection to the first byte.
    pub header: Duration,
    /// Between two pieces of a request's body. The handler sees an error of the body then.
    pub body_idle: Duration,
    /// With an answer waiting for the client to read on. On an HTTP/2 connection each answer waits for itself.
    pub write_stall: Duration,
    /// Between two requests of an HTTP/1 connection. Longer than the 60 s of common reverse proxies, so that it is the
    /// proxy that closes and no request meets a closing connection.
    pub keep_alive: Duration,
    /// An HTTP/2 connection without a call.
    pub http2_idle: Duration,
    /// Calls at a time on one HTTP/2 connection.
    pub http2_streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            header: Duration::from_secs(20),
            body_idle: Duration::from_secs(30),
            write_stall: Duration::from_secs(60),
            keep_alive: Duration::from_secs(75),
            http2_idle: Duration::from_secs(300),
            http2_streams: 100,
        }
    }
}

/// A listener cannot be had. The address is in the text; the reason is the source.
#[derive(Debug, Error)]
pub enum BindError {
    /// Something else listens there.
    #[error("{name} cannot listen on {address}: the port is in use by another process")]
    InUse {
        /// What the listener is for.
        name: &'static str,
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// Any other reason.
    #[error("{name} cannot listen on {address}")]
    Other {
        /// What the listener is for.
        name: &'static str,
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Told when answers in flight have to end. Handlers of streams hold one.
#[derive(Clone, Debug)]
pub struct Cut(CancellationToken);

impl Cut {
    /// Waits until answers have to end.
    pub async fn ordered(&self) {
        self.0.cancelled().await;
    }

    /// A signal for some of the answers: it is given with this one, and may be given before.
    #[must_use]
    pub fn narrowed(&self) -> CancellationToken {
        self.0.child_token()
    }
}

/// A bound port that does not answer yet.
#[derive(Debug)]
pub struct Listener {
    name: &'static str,
    socket: TcpListener,
    address: SocketAddr,
    cut: CancellationToken,
}

impl Listener {
    /// Binds the port. `name` says in logs and errors what the listener is for.
    ///
    /// # Errors
    ///
    /// [`BindError`] when the port cannot be had.
    pub async fn bind(name: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        let bound = TcpListener::bind(address).await.and_then(|socket| Ok((socket.local_addr()?, socket)));
        match bound {
            Ok((address, socket)) => Ok(Self { name, socket, address, cut: CancellationToken::new() }),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Err(BindError::InUse { name, address }),
            Err(source) => Err(BindError::Other { name, address, source }),
        }
    }

    /// The address, with the port that was chosen when port 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The signal for handlers of streams. To be taken before the router that needs it is built.
    #[must_use]
    pub fn cut(&self) -> Cut {
        Cut(self.cut.clone())
    }

    /// Begins to answer. Requests carry the client's address as `ConnectInfo<SocketAddr>`.
    #[must_use]
    pub fn serve(self, router: Router, limits: Limits) -> Serving {
        let shared = Arc::new(Shared::new(self.name, router, limits));
        tracing::info!(listener = self.name, address = %self.address, "listening");
        shared.tasks.spawn(accept(self.socket, Arc::clone(&shared)));
        Serving { shared, cut: self.cut, address: self.address }
    }
}

/// What the connections of one listener have in common.
struct Shared {
    name: &'static str,
    router: Router,
    limits: Limits,
    protocol: Builder<Tracked>,
    leaving: CancellationToken,
    draining: CancellationToken,
    closed: CancellationToken,
    calls: AtomicUsize,
    tasks: TaskTracker,
}

impl Shared {
    fn new(name: &'static str, router: Router, limits: Limits) -> Self {
        let tasks = TaskTracker::new();
        Self {
            name,
            router,
            limits,
            protocol: protocol(limits, tasks.clone()),
            leaving: CancellationToken::new(),
            draining: CancellationToken::new(),
            closed: CancellationToken::new(),
            calls: AtomicUsize::new(0),
            tasks,
        }
    }
}

/// A listener that answers. Dropping it closes everything at once; [`Serving::drain`] is the orderly way.
pub struct Serving {
    shared: Arc<Shared>,
    cut: CancellationToken,
    address: SocketAddr,
}

/// How a drain went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Calls that were still in flight at the deadline and were told to end.
    pub cut: usize,
}

impl Serving {
    /// The address it answers on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Goes on serving, new connections included, and asks every client to go elsewhere for its next call.
    pub fn ask_to_leave(&self) {
        self.shared.leaving.cancel();
    }

    /// Stops accepting, waits for the calls in flight until the deadline, then cuts them.
    pub async fn drain(self, deadline: Deadline) -> Drained {
        let tasks = &self.shared.tasks;
        self.shared.leaving.cancel();
        self.shared.draining.cancel();
        tasks.close();
        let finished = tokio::select! {
            () = tasks.wait() => true,
            () = deadline.reached() => false,
        };
        if finished {
            return Drained { cut: 0 };
        }
        let cut = self.shared.calls.load(Ordering::Relaxed);
        self.cut.cancel();
        if tokio::time::timeout(CUT_GRACE, tasks.wait()).await.is_err() {
            self.shared.closed.cancel();
            tasks.wait().await;
        }
        tracing::warn!(listener = self.shared.name, cut, "cut the calls that were still in flight");
        Drained { cut }
    }

    /// Closes everything at once, for listeners whose calls have nothing to finish.
    pub async fn close(self) {
        self.shared.draining.cancel();
        self.shared.closed.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.cut.cancel();
        self.shared.draining.cancel();
        self.shared.closed.cancel();
    }
}

fn protocol(limits: Limits, tasks: TaskTracker) -> Builder<Tracked> {
    const HEADER_BYTES: u32 = 64 * 1024;
    let mut builder = Builder::new(Tracked(tasks));
    // hyper's own header timer also runs between requests, which would cut idle connections under a proxy; ours does
    // not.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.http2_streams)
        .max_header_list_size(HEADER_BYTES)
        // A client that opens and resets calls faster than they are taken up is disconnected.
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(1024)
        .keep_alive_interval(limits.header)
        .keep_alive_timeout(limits.header);
    builder
}

async fn accept(socket: TcpListener, shared: Arc<Shared>) {
    let slots = Arc::new(Semaphore::new(shared.limits.connections));
    let start = |stream: TcpStream, peer, slot| {
        let connection = connection::serve(stream, peer, Arc::clone(&shared));
        shared.tasks.spawn(async move {
            connection.await;
            drop(slot);
        });
    };
    loop {
        let next = async {
            // Acquiring fails only when the semaphore is closed, which nobody does.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            (slot, socket.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            biased;
            () = shared.draining.cancelled() => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => start(stream, peer, slot),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(
                    listener = shared.name,
                    error = &error as &dyn std::error::Error,
                    "a connection could not be accepted"
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Clients in the queue of the system have connected as far as they know: they are answered too.
    let Ok(socket) = socket.into_std() else { return };
    while let (Ok(slot), Ok((stream, peer))) = (Arc::clone(&slots).try_acquire_owned(), socket.accept()) {
        if stream.set_nonblocking(true).is_ok()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            start(stream, peer, Some(slot));
        }
    }
}

/// Whether the failure is that of the one client, which has gone already.
fn is_of_one_connection(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}
