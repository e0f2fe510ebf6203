//! What this process has done since its start, in numbers: for the last line of its log and for its metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters. Each stands alone, so that no order among them is kept.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    claimed: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    delayed: AtomicU64,
    put_back: AtomicU64,
    taken_over: AtomicU64,
    overdue: AtomicU64,
    fenced: AtomicU64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// A document was claimed.
    Claimed,
    /// It was made searchable.
    Finished,
    /// It failed for good.
    Failed,
    /// It waits for something that passes.
    Delayed,
    /// It was put back as it was.
    PutBack,
    /// Its lease was lost to somebody else.
    TakenOver,
    /// Its lease could not be renewed in time, and it was dropped.
    Overdue,
    /// What its job came to was not written, because the claim did not hold any more.
    Fenced,
}

impl Tally {
    /// Counts one; returns how many there are now.
    pub(crate) fn count(&self, what: Counted) -> u64 {
        self.count_many(what, 1)
    }

    /// Counts several; returns how many there are now.
    pub(crate) fn count_many(&self, what: Counted, more: u64) -> u64 {
        self.counter(what).fetch_add(more, Ordering::Relaxed) + more
    }

    /// How many there were.
    pub(crate) fn of(&self, what: Counted) -> u64 {
        self.counter(what).load(Ordering::Relaxed)
    }

    /// Says all of it.
    pub(crate) fn log(&self) {
        tracing::info!(
            claimed = self.of(Counted::Claimed),
            finished = self.of(Counted::Finished),
            failed = self.of(Counted::Failed),
            delayed = self.of(Counted::Delayed),
            put_back = self.of(Counted::PutBack),
            leases_taken_over = self.of(Counted::TakenOver),
            leases_overdue = self.of(Counted::Overdue),
            fenced = self.of(Counted::Fenced),
            "documents of this process since its start"
        );
    }

    fn counter(&self, what: Counted) -> &AtomicU64 {
        match what {
            Counted::Claimed => &self.claimed,
            Counted::Finished => &self.finished,
            Counted::Failed => &self.failed,
            Counted::Delayed => &self.delayed,
            Counted::PutBack => &self.put_back,
            Counted::TakenOver => &self.taken_over,
            Counted::Overdue => &self.overdue,
            Counted::Fenced => &self.fenced,
        }
    }
}
