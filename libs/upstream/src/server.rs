//! Listening, connections, and stopping.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Counters, Log, Options, Script, Wait, call::Shared, script::Board};

/// How long [`run`] lets open answers finish when it is told to stop.
pub const STOP_GRACE: Duration = Duration::from_secs(3);

/// A pause after an error of the listener, most likely too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A client must have sent the head of its request after this long.
const HEADER_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Runs an upstream on `listen` until `shutdown` completes.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn run(listen: SocketAddr, options: Options, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let handle = serve(TcpListener::bind(listen).await?, options)?;
    tracing::info!(address = %handle.address(), "demonstration upstream is listening");
    shutdown.await;
    handle.stop(STOP_GRACE).await;
    tracing::info!("demonstration upstream has stopped");
    Ok(())
}

/// Serves connections of `listener` in tasks of the current runtime until the handle is stopped or dropped.
///
/// # Errors
///
/// When the listener has no local address.
///
/// # Panics
///
/// Outside a Tokio runtime.
pub fn serve(listener: TcpListener, options: Options) -> io::Result<Handle> {
    let address = listener.local_addr()?;
    let board = Board::new(options.log_calls);
    let (accepting, stop) = (CancellationToken::new(), CancellationToken::new());
    let shared =
        Arc::new(Shared { options, board: Arc::clone(&board), stop: stop.clone(), answers: AtomicU64::new(1) });
    let tasks = TaskTracker::new();
    tasks.spawn(accept(listener, shared, accepting.clone(), tasks.clone()));
    Ok(Handle { address, board, accepting, stop, tasks })
}

/// A running upstream.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    board: Arc<Board>,
    /// Cancelled: no new connections, no new calls on those there are.
    accepting: CancellationToken,
    /// Cancelled: open answers are cut.
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Handle {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL for clients: `http://127.0.0.1:PORT/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Stops: takes no more calls, lets open answers finish for as long as `grace`, cuts what is left, and returns when
    /// every connection is closed.
    pub async fn stop(self, grace: Duration) {
        self.accepting.cancel();
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            self.stop.cancel();
            self.tasks.wait().await;
        }
    }

    /// What `POST /script` does, without HTTP. Scripts are only met with [`Options::script`].
    pub fn script(&self, script: Script) {
        self.board.add(script);
    }

    /// What `POST /script/release` does.
    pub fn release(&self, count: Option<usize>) {
        self.board.release(count);
    }

    /// What `DELETE /script` does.
    pub fn clear(&self) {
        self.board.clear();
    }

    /// What `GET /script/log?after=…` answers; 0 for all that is kept.
    #[must_use]
    pub fn log(&self, after: u64) -> Log {
        self.board.log(after)
    }

    /// What `GET /script/counters` answers.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.board.counters()
    }

    /// Waits until the counters are as asked for, without a deadline: the caller sets it.
    pub async fn wait(&self, wait: Wait) -> Counters {
        self.board.wait(&wait).await
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.accepting.cancel();
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, accepting: CancellationToken, tasks: TaskTracker) {
    while let Some(accepted) = accepting.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                tasks.spawn(connection(stream, Arc::clone(&shared), accepting.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>, accepting: CancellationToken) {
    // Without it a small event waits for the one before it to be acknowledged.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    let stop = shared.stop.clone();
    let service = service_fn(move |request| Arc::clone(&shared).call(request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIME_LIMIT);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = accepting.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            () = stop.cancelled(), if draining => return,
        }
    }
}
