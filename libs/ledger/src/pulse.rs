//! Whether a call may begin before its row is written: whether its lane answers promptly, and its project is not held up.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ProjectId;
use tokio::time::Instant;

/// While the oldest ask that a lane is at is older, or its statement is, nothing more is begun that does not wait for it.
/// So what a process that is killed takes with it was begun within so long of each other: in the last 10 ms before, or, if
/// the database stood still by then, in the last 10 ms before that was noticed.
const PROMPT: Duration = Duration::from_millis(10);

/// What a lane is at, for those that hand it asks.
pub(crate) struct Pulse {
    begun: Instant,
    /// Microseconds from `begun` to the moment since when something waits for the lane's statement; 0 when nothing does.
    busy_since: AtomicU64,
    has_failed: AtomicBool,
    /// Projects that somebody has locked, or whose key, and those whose running calls have no rows yet.
    held_up: Mutex<HashSet<ProjectId>>,
    is_any_held_up: AtomicBool,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            busy_since: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            held_up: Mutex::default(),
            is_any_held_up: AtomicBool::new(false),
        }
    }

    /// Asks wait since then.
    pub(crate) fn works(&self, since: Instant) {
        self.busy_since.store(self.microseconds(since).max(1), Ordering::Relaxed);
    }

    /// None wait.
    pub(crate) fn rests(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
    }

    /// The database has answered, or not.
    pub(crate) fn answered(&self, has_failed: bool) {
        self.has_failed.store(has_failed, Ordering::Relaxed);
    }

    /// Asks of this project could not be decided.
    pub(crate) fn holds_up(&self, project: ProjectId) {
        let mut held_up = self.held_up();
        held_up.insert(project);
        self.is_any_held_up.store(true, Ordering::Relaxed);
    }

    /// They are again.
    pub(crate) fn goes_on(&self, project: ProjectId) {
        let mut held_up = self.held_up();
        held_up.remove(&project);
        self.is_any_held_up.store(!held_up.is_empty(), Ordering::Relaxed);
    }

    /// Whether any project is held up.
    pub(crate) fn is_any_held_up(&self) -> bool {
        self.is_any_held_up.load(Ordering::Relaxed)
    }

    /// Whether an ask of this project that is handed over now will soon be in the database.
    pub(crate) fn is_prompt(&self, project: ProjectId) -> bool {
        let busy_since = self.busy_since.load(Ordering::Relaxed);
        let now = || self.microseconds(Instant::now());
        let has_time = busy_since == 0 || u128::from(now().saturating_sub(busy_since)) < PROMPT.as_micros();
        has_time
            && !self.has_failed.load(Ordering::Relaxed)
            && !(self.is_any_held_up() && self.held_up().contains(&project))
    }

    fn held_up(&self) -> MutexGuard<'_, HashSet<ProjectId>> {
        // A panic while it was held has left a set that is as good as any.
        self.held_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn microseconds(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.begun).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROJECT: ProjectId = ProjectId(1);

    #[tokio::test(start_paused = true)]
    async fn a_lane_is_prompt_unless_something_waits_for_long_or_it_has_failed() {
        let pulse = Pulse::new();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(pulse.is_prompt(PROJECT));
        pulse.works(Instant::now() - PROMPT / 2);
        assert!(pulse.is_prompt(PROJECT));
        tokio::time::advance(PROMPT / 2).await;
        assert!(!pulse.is_prompt(PROJECT));
        pulse.rests();
        assert!(pulse.is_prompt(PROJECT));
        pulse.answered(true);
        assert!(!pulse.is_prompt(PROJECT));
    }

    #[test]
    fn a_project_that_is_held_up_does_not_hold_up_others() {
        let pulse = Pulse::new();
        let other = ProjectId(3);
        pulse.holds_up(PROJECT);
        pulse.holds_up(other);
        pulse.goes_on(other);
        assert!(!pulse.is_prompt(PROJECT) && pulse.is_prompt(other));
        pulse.goes_on(PROJECT);
        assert!(pulse.is_prompt(PROJECT) && !pulse.is_any_held_up());
    }
}
