//! Whether a lane answers promptly.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is sent to a lane that has been at one statement for longer waits too long for calls that do not wait for it: a
/// process that is killed loses those of the last 10 ms, and no more.
const PROMPT: Duration = Duration::from_millis(10);

/// What a lane is at, for those that hand it asks.
pub(crate) struct Pulse {
    begun: Instant,
    /// Microseconds from `begun` to the start of the statement under way; 0 when there is none.
    busy_since: AtomicU64,
    has_failed: AtomicBool,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), busy_since: AtomicU64::new(0), has_failed: AtomicBool::new(false) }
    }

    /// A statement is sent.
    pub(crate) fn works(&self) {
        self.busy_since.store(self.now().max(1), Ordering::Relaxed);
    }

    /// It was answered, or not.
    pub(crate) fn rests(&self, has_failed: bool) {
        self.has_failed.store(has_failed, Ordering::Relaxed);
        self.busy_since.store(0, Ordering::Relaxed);
    }

    /// Whether an ask that is handed over now will soon be in the database.
    pub(crate) fn is_prompt(&self) -> bool {
        let busy_since = self.busy_since.load(Ordering::Relaxed);
        let has_time = busy_since == 0 || u128::from(self.now().saturating_sub(busy_since)) < PROMPT.as_micros();
        has_time && !self.has_failed.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_prompt_unless_its_statement_takes_long_or_has_failed() {
        let pulse = Pulse { begun: Instant::now() - Duration::from_secs(1), ..Pulse::new() };
        assert!(pulse.is_prompt());
        pulse.works();
        pulse.busy_since.fetch_sub(20_000, Ordering::Relaxed);
        assert!(!pulse.is_prompt());
        pulse.rests(false);
        assert!(pulse.is_prompt());
        pulse.rests(true);
        assert!(!pulse.is_prompt());
    }
}
