//! How far a job is, shown at most every two seconds.

use std::time::Duration;

use store::Store;
use store::queue::ClaimKey;
use tokio::time::Instant;

const PAUSE: Duration = Duration::from_secs(2);

/// Writes the progress of one claim.
pub(crate) struct Progress {
    store: Store,
    key: ClaimKey,
    stage: &'static str,
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(store: Store, key: ClaimKey) -> Self {
        Self { store, key, stage: "claimed", shown: None }
    }

    /// Says where the job is. A new stage is shown at once unless the last word is younger than two seconds; a failure
    /// to show it is no failure of the job.
    pub(crate) async fn at(&mut self, stage: &'static str, done: usize, total: usize) {
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= PAUSE);
        if !due {
            self.stage = stage;
            return;
        }
        self.stage = stage;
        self.shown = Some(Instant::now());
        let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        if let Err(error) = self.store.set_progress(self.key, stage, count(done), count(total)).await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                document = self.key.document.0,
                "progress could not be shown"
            );
        }
    }
}
