//! Trying again before the first byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

use crate::error::{UpstreamError, Waited};

/// The most times one request is sent, retries and fallbacks together.
pub const MAX_ATTEMPTS: u32 = 3;

const FIRST_DELAY: Duration = Duration::from_millis(250);
const MAX_DELAY: Duration = Duration::from_secs(8);

/// The attempts of one client request. It is made once per request and passed to every call that serves it, whichever
/// connection that goes to, so the bounds hold across all of them.
#[derive(Debug)]
pub struct Attempts {
    deadline: Instant,
    made: u32,
    last: Option<usize>,
    replays_timeouts: bool,
    /// Whether a provider may bill an attempt that is over.
    owes: bool,
    /// Whether one may bill anything at all, the running attempt as well.
    is_owed: Arc<AtomicBool>,
}

impl Attempts {
    /// No attempt made yet; none may begin or last past `deadline`.
    #[must_use]
    pub fn until(deadline: Instant) -> Self {
        Self { deadline, made: 0, last: None, replays_timeouts: false, owes: false, is_owed: Arc::default() }
    }

    /// Whether a request that was sent and not answered may be sent again, though the provider may be working on it.
    #[must_use]
    pub fn replaying_timeouts(self, replays_timeouts: bool) -> Self {
        Self { replays_timeouts, ..self }
    }

    /// Says in `is_owed`, at every moment, whether a provider may bill the request: not before the first attempt, and not
    /// between attempts as long as each was answered by a failure that costs nothing.
    #[must_use]
    pub fn telling(self, is_owed: Arc<AtomicBool>) -> Self {
        is_owed.store(self.owes, Ordering::Relaxed);
        Self { is_owed, ..self }
    }

    /// How many were made.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Where the last one went, as its place among the destinations.
    #[must_use]
    pub fn last(&self) -> Option<usize> {
        self.last
    }

    /// When the request must be over.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Counts an attempt, and says where the one before it went.
    pub(crate) fn begin(&mut self, at: usize) -> Option<usize> {
        self.made += 1;
        self.is_owed.store(true, Ordering::Relaxed);
        self.last.replace(at)
    }

    /// An attempt has failed, so that nothing of it is on its way any more.
    pub(crate) fn failed(&mut self, error: &UpstreamError) {
        self.owes |= error.leaves_open();
        self.is_owed.store(self.owes, Ordering::Relaxed);
    }

    /// A part of the request was answered, and is billed whatever becomes of the others.
    pub(crate) fn owes(&mut self) {
        self.owes = true;
        self.is_owed.store(true, Ordering::Relaxed);
    }

    /// Nothing was sent after all: the last one is what [`Attempts::begin`] said.
    pub(crate) fn take_back(&mut self, before: Option<usize>) {
        self.made = self.made.saturating_sub(1);
        self.last = before;
        self.is_owed.store(self.owes, Ordering::Relaxed);
    }

    /// How long to wait before the same destination is tried again; none when it is not to be: the error is of a kind
    /// that is not retried, three attempts were made, or the wait would pass the deadline. A provider that asks for more
    /// than 8 seconds is not waited for: the client hears of it at once and knows better what its time is worth.
    pub(crate) fn delay_after(&self, error: &UpstreamError) -> Option<Duration> {
        self.next_delay(error, rand::rng().random_range(0.0..1.0))
    }

    /// Whether another destination may be asked after an error.
    pub(crate) fn may_go_elsewhere(&self, error: &UpstreamError) -> bool {
        error.is_of_destination() || self.is_replayed(error)
    }

    fn is_replayed(&self, error: &UpstreamError) -> bool {
        self.replays_timeouts && matches!(error, UpstreamError::Timeout(Waited::Headers) | UpstreamError::Lost(_))
    }

    fn next_delay(&self, error: &UpstreamError, jitter: f64) -> Option<Duration> {
        if self.made >= MAX_ATTEMPTS || !(error.is_retryable() || self.is_replayed(error)) {
            return None;
        }
        let full = FIRST_DELAY.saturating_mul(1_u32.checked_shl(self.made.saturating_sub(1)).unwrap_or(u32::MAX));
        let backoff = full.min(MAX_DELAY).mul_f64(0.5 + jitter / 2.0);
        let asked = error.retry_after().unwrap_or_default();
        let delay = backoff.max(asked);
        (asked <= MAX_DELAY && Instant::now() + delay < self.deadline).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Words;

    fn unavailable(retry_after_s: Option<u64>) -> UpstreamError {
        UpstreamError::Failed {
            status: 503,
            words: Words::default(),
            retry_after: retry_after_s.map(Duration::from_secs),
        }
    }

    fn after(made: u32, left: Duration) -> Attempts {
        Attempts { made, ..Attempts::until(Instant::now() + left) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_doubles_and_is_jittered_downwards() {
        let left = Duration::from_secs(60);
        assert_eq!(after(1, left).next_delay(&unavailable(None), 1.0), Some(Duration::from_millis(250)));
        assert_eq!(after(1, left).next_delay(&unavailable(None), 0.0), Some(Duration::from_millis(125)));
        assert_eq!(after(2, left).next_delay(&unavailable(None), 1.0), Some(Duration::from_millis(500)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_provider_is_given_the_time_it_asks_for_unless_that_is_long() {
        let left = Duration::from_secs(60);
        assert_eq!(after(1, left).next_delay(&unavailable(Some(3)), 0.5), Some(Duration::from_secs(3)));
        assert_eq!(after(1, left).next_delay(&unavailable(Some(9)), 0.5), None);
    }

    #[test]
    fn between_attempts_nothing_is_owed_unless_one_was_not_answered() {
        let is_owed = Arc::new(AtomicBool::new(true));
        let mut attempts = Attempts::until(Instant::now()).telling(Arc::clone(&is_owed));
        let owed = || is_owed.load(Ordering::Relaxed);
        assert!(!owed(), "nothing was sent");
        attempts.begin(0);
        assert!(owed());
        attempts.failed(&unavailable(None));
        assert!(!owed());
        let before = attempts.begin(1);
        attempts.take_back(before);
        assert!(!owed());
        attempts.begin(1);
        attempts.failed(&UpstreamError::Timeout(Waited::Headers));
        assert!(owed(), "the provider may be working on it");
        attempts.begin(0);
        attempts.failed(&unavailable(None));
        assert!(owed());
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_end_with_the_third_and_with_the_deadline() {
        assert_eq!(after(3, Duration::from_secs(60)).next_delay(&unavailable(None), 0.5), None);
        assert_eq!(after(1, Duration::from_millis(200)).next_delay(&unavailable(None), 1.0), None);
        assert_eq!(after(1, Duration::from_secs(60)).next_delay(&UpstreamError::Truncated, 0.5), None);
        assert!(after(1, Duration::from_secs(60)).next_delay(&unavailable(None), 0.5).is_some());
    }
}
