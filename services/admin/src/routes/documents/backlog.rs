//! How many documents wait, counted at most once a second.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use store::Store;
use tokio::time::Instant;

use crate::error::ApiError;

const FRESH: Duration = Duration::from_secs(1);

/// A guard against a queue without bound. Uploads within the same second may overshoot it together.
pub(crate) struct Backlog {
    store: Store,
    limit: i64,
    seen: Mutex<Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    waiting: i64,
    at: Option<Instant>,
}

impl Backlog {
    pub(crate) fn new(store: Store, limit: i64) -> Self {
        Self { store, limit, seen: Mutex::new(Seen { waiting: 0, at: None }) }
    }

    /// Refuses an upload while too many documents wait.
    pub(super) async fn check(&self) -> Result<(), ApiError> {
        let waiting = match self.fresh_or_mine_to_count() {
            Some(waiting) => waiting,
            None => self.count().await?,
        };
        if waiting >= self.limit { Err(ApiError::Backlog { limit: self.limit }) } else { Ok(()) }
    }

    /// The last count, unless it is old; then it is the caller's to count, and others go by the old one meanwhile.
    fn fresh_or_mine_to_count(&self) -> Option<i64> {
        let mut seen = self.seen();
        if seen.at.is_some_and(|at| at.elapsed() < FRESH) {
            return Some(seen.waiting);
        }
        seen.at = Some(Instant::now());
        None
    }

    async fn count(&self) -> Result<i64, ApiError> {
        let counted = self.store.count_pending_documents().await;
        let mut seen = self.seen();
        match counted {
            Ok(waiting) => {
                seen.waiting = waiting;
                Ok(waiting)
            }
            Err(error) => {
                seen.at = None;
                Err(error.into())
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it is held, and two numbers cannot be half-written.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
