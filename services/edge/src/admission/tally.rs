//! Counting denials: in memory, and every few seconds into the minutes of the database. A denied call leaves no other
//! trace, so an attack fills nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::Tier;
use store::denials::DenialCount;
use store::{Store, StoreError};
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use crate::state::Shared;

const EVERY: Duration = Duration::from_secs(2);

/// For all statements of one write, of which each takes a few milliseconds. At the end of an edge one write may be under
/// way and one is to follow: twice this is less than what the end waits, and leaves time to leave the instances.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is counted apart between two writes. Beyond it denials are counted under their tier and code, of nobody.
const SLOTS: usize = 10_000;

/// Counts of one statement.
const BATCH: usize = 1_000;

/// Whose id counts what found no slot.
const NOBODY: i64 = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    tier: Tier,
    id: i64,
    code: String,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    denials: i64,
    last: Instant,
}

/// The denials that are not yet written.
pub(crate) struct Tally {
    counts: Mutex<HashMap<Slot, Count>>,
    slots: usize,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self::with(SLOTS)
    }

    fn with(slots: usize) -> Self {
        Self { counts: Mutex::new(HashMap::new()), slots }
    }

    /// Counts one denial of a project or key.
    pub(crate) fn count(&self, tier: Tier, id: i64, code: &str) {
        self.add(Slot { tier, id, code: code.to_owned() }, Count { denials: 1, last: Instant::now() });
    }

    fn add(&self, mut slot: Slot, count: Count) {
        let mut counts = self.counts();
        if counts.len() >= self.slots && !counts.contains_key(&slot) {
            slot.id = NOBODY;
        }
        let entry = counts.entry(slot).or_insert(Count { denials: 0, last: count.last });
        entry.denials = entry.denials.saturating_add(count.denials);
        entry.last = entry.last.max(count.last);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Slot, Count>> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was counted until now. What cannot be written is counted on.
    async fn write(&self, store: &Store) -> Result<(), Unwritten> {
        let taken: Vec<(Slot, Count)> = std::mem::take(&mut *self.counts()).into_iter().collect();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut result = Ok(());
        for batch in taken.chunks(BATCH) {
            if result.is_ok() {
                let counts: Vec<DenialCount> = batch.iter().map(told).collect();
                result = match timeout_at(deadline, store.add_denials(&counts)).await {
                    Ok(written) => written.map_err(Unwritten::Refused),
                    Err(_) => Err(Unwritten::TooSlow),
                };
            }
            if result.is_err() {
                for (slot, count) in batch {
                    self.add(slot.clone(), *count);
                }
            }
        }
        result
    }
}

#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error("the database refused them")]
    Refused(#[source] StoreError),
    #[error("the database took too long")]
    TooSlow,
}

fn told((slot, count): &(Slot, Count)) -> DenialCount {
    DenialCount {
        tier: slot.tier,
        id: slot.id,
        code: slot.code.clone(),
        denials: count.denials,
        age: count.last.elapsed(),
    }
}

/// Writes every few seconds until it is told to stop, and then what is left.
pub(crate) async fn keep_writing(edge: Shared, stop: CancellationToken) {
    let mut failing = false;
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        // Not cut off by the stop: what is sent may have been written although nobody waited for the answer.
        match edge.tally.write(&edge.store).await {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "counts of denials cannot be written, trying on");
            }
            Err(_) => {}
        }
    }
    if let Err(error) = edge.tally.write(&edge.store).await {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, "the last counts of denials are lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(tally: &Tally) -> Vec<(Tier, i64, String, i64)> {
        let counts = tally.counts();
        let mut all: Vec<_> =
            counts.iter().map(|(slot, count)| (slot.tier, slot.id, slot.code.clone(), count.denials)).collect();
        all.sort_by_key(|(_, id, code, _)| (*id, code.clone()));
        all
    }

    #[test]
    fn denials_are_counted_by_whose_they_are_and_why() {
        let tally = Tally::new();
        for _ in 0..3 {
            tally.count(Tier::Project, 7, "rate_limit_rpm");
        }
        tally.count(Tier::Key, 7, "rate_limit_rpm");
        assert_eq!(tally.counts().len(), 2);
        assert_eq!(tally.counts().values().map(|count| count.denials).sum::<i64>(), 4);
    }

    #[test]
    fn more_than_there_are_slots_for_is_counted_without_its_owner() {
        let tally = Tally::with(2);
        for id in 1..=9 {
            tally.count(Tier::Key, id, "key_revoked");
        }
        tally.count(Tier::Key, 1, "key_revoked");
        let key = |id, denials| (Tier::Key, id, "key_revoked".to_owned(), denials);
        assert_eq!(sorted(&tally), [key(NOBODY, 7), key(1, 2), key(2, 1)]);
    }
}
