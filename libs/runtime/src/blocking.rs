//! Work that blocks a thread, a few pieces at a time.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::timeout;

/// Runs work away from the threads that serve. Clones share their slots.
///
/// Work that has begun goes on to its end, whether its caller is still there or not, and keeps its slot until then: a
/// client that leaves makes no room. What the work was given lives as long as it runs.
#[derive(Clone, Debug)]
pub struct Blocking {
    slots: Arc<Semaphore>,
    patience: Duration,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// No slot became free in time.
    #[error("there is more work than this process can do")]
    Busy,
    /// The work panicked, or the runtime is ending.
    #[error("the work did not come to its end")]
    Broken(#[source] JoinError),
}

impl Blocking {
    /// Room for this many pieces of work at once; who finds none waits for at most `patience`.
    #[must_use]
    pub fn new(at_once: usize, patience: Duration) -> Self {
        Self { slots: Arc::new(Semaphore::new(at_once)), patience }
    }

    /// Room for one piece of work per core.
    #[must_use]
    pub fn per_core(patience: Duration) -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, NonZero::get), patience)
    }

    /// Does the work when there is room for it.
    ///
    /// # Errors
    /// [`BlockingError`]
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, BlockingError> {
        let Ok(Ok(slot)) = timeout(self.patience, Arc::clone(&self.slots).acquire_owned()).await else {
            return Err(BlockingError::Busy);
        };
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(slot);
            result
        });
        done.await.map_err(BlockingError::Broken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_caller_that_leaves_makes_no_room_before_its_work_is_done() {
        let blocking = Blocking::new(1, PATIENCE);
        let (finish, finished) = mpsc::channel::<()>();
        {
            let mut left = Box::pin(blocking.run(move || finished.recv()));
            assert!(futures::poll!(&mut left).is_pending());
        }
        assert_eq!(blocking.slots.available_permits(), 0, "the work still runs");
        finish.send(()).unwrap();
        assert_eq!(blocking.run(|| 7).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_in_time_is_told() {
        let blocking = Blocking::new(0, PATIENCE);
        assert!(matches!(blocking.run(|| ()).await, Err(BlockingError::Busy)));
    }

    #[tokio::test]
    async fn work_that_breaks_gives_its_room_back() {
        let blocking = Blocking::new(1, PATIENCE);
        let broken = blocking.run(|| std::panic::resume_unwind(Box::new("broken"))).await;
        assert!(matches!(broken, Err::<(), _>(BlockingError::Broken(_))));
        assert!(blocking.run(|| ()).await.is_ok());
    }
}
