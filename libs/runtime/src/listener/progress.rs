//! Whether the client of an HTTP/2 call goes on taking its answer.
//!
//! Each stream of a connection has a window of its own (RFC 9113, section 5.2). While a client keeps that shut, nobody asks
//! the answer for more, so nothing within the call can notice, and the connection itself is in the best of health.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hyper::rt::Executor;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

tokio::task_local! {
    static CALL: Arc<Progress>;
}

/// How far the answer of a call is, told by its body and read by the task of its connection.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How often it was asked for more, twice; and one if the client has to take something before it is asked again.
    state: AtomicU64,
    task: OnceLock<AbortHandle>,
}

impl Progress {
    /// Of the call that this task serves, if it is one of HTTP/2.
    pub(super) fn of_this_task() -> Option<Arc<Self>> {
        CALL.try_with(Arc::clone).ok()
    }

    /// The answer was asked for more, or is about to be, and then it is the client's turn or its own.
    pub(super) fn is_turn_of(&self, client: bool) {
        // Only the call itself writes.
        let asked = self.state.load(Ordering::Relaxed) | 1;
        self.state.store(asked.wrapping_add(1) | u64::from(client), Ordering::Relaxed);
    }

    /// A value that is another one after each step.
    pub(super) fn step(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
    }

    /// Whether a step waits for the client.
    pub(super) fn waits_for_client(step: u64) -> bool {
        step & 1 == 1
    }

    /// Ends the call: its stream is reset, and all that it holds is let go.
    pub(super) fn give_up(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// Starts the tasks of HTTP/2 calls where they are counted.
#[derive(Clone)]
pub(super) struct Tracked(pub(super) TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let progress = Arc::new(Progress::default());
        let task = self.0.spawn(CALL.scope(Arc::clone(&progress), task));
        // It is set once, here.
        let _ = progress.task.set(task.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_differs_from_the_one_before_and_says_whose_turn_it_is() {
        let progress = Progress::default();
        assert!(!Progress::waits_for_client(progress.step()));
        let mut before = progress.step();
        for client in [true, true, false, false, true] {
            progress.is_turn_of(client);
            assert_ne!(progress.step(), before);
            assert_eq!(Progress::waits_for_client(progress.step()), client);
            before = progress.step();
        }
    }
}
