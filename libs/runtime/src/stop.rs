//! Being told to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Told when the process has to end: the first SIGTERM or SIGINT begins the end, a second one hurries it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    begun: CancellationToken,
    hurry: CancellationToken,
}

impl Stop {
    /// A stop that only [`Stop::begin`] begins, for tests and for processes inside a process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until the end has begun.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Whether the end has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Begins the end; a second call hurries it.
    pub fn begin(&self) {
        if self.has_begun() {
            self.hurry.cancel();
        } else {
            self.begun.cancel();
        }
    }

    /// Cancelled when the end is to be hurried.
    #[must_use]
    pub fn hurry(&self) -> &CancellationToken {
        &self.hurry
    }
}

/// The signals that end a process. From when they are made, a signal no longer ends the process by itself.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Passes signals on, for ever.
    pub(crate) async fn pass_on(mut self, stop: Stop) {
        loop {
            let name = tokio::select! {
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.interrupt.recv() => "SIGINT",
            };
            if stop.has_begun() {
                tracing::warn!(signal = name, "told to stop again, going straight to settling");
            } else {
                tracing::info!(signal = name, "told to stop");
            }
            stop.begin();
        }
    }
}
