//! Answers of the database that are kept until they change.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A bounded map whose entries expire and can be forgotten.
///
/// A reading that began before something was forgotten is not kept: it may have seen the state before the change. So
/// whoever fills the map takes a [`Reading`] before it asks the database.
pub(crate) struct Kept<K, V> {
    capacity: usize,
    state: Mutex<State<K, V>>,
}

struct State<K, V> {
    epoch: u64,
    entries: HashMap<K, (V, Instant)>,
}

/// The moment before a question to the database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading(u64);

impl<K: Eq + Hash + Clone, V: Clone> Kept<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::new(State { epoch: 0, entries: HashMap::new() }) }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let state = self.state();
        state.entries.get(key).filter(|(_, until)| *until > Instant::now()).map(|(value, _)| value.clone())
    }

    pub(crate) fn reading(&self) -> Reading {
        Reading(self.state().epoch)
    }

    /// Keeps an answer for that long, unless something was forgotten since the reading began.
    pub(crate) fn keep(&self, reading: Reading, key: K, value: V, time: Duration) {
        let mut state = self.state();
        if state.epoch != reading.0 {
            return;
        }
        if state.entries.len() >= self.capacity && !state.entries.contains_key(&key) {
            let now = Instant::now();
            state.entries.retain(|_, (_, until)| *until > now);
            // Any will do: whoever misses it asks again.
            if state.entries.len() >= self.capacity
                && let Some(victim) = state.entries.keys().next().cloned()
            {
                state.entries.remove(&victim);
            }
        }
        state.entries.insert(key, (value, Instant::now() + time));
    }

    /// Forgets what the test says, and every reading that is under way.
    pub(crate) fn forget(&self, mut test: impl FnMut(&K, &V) -> bool) {
        let mut state = self.state();
        state.epoch += 1;
        state.entries.retain(|key, (value, _)| !test(key, value));
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.forget(|_, _| true);
    }

    fn state(&self) -> MutexGuard<'_, State<K, V>> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_is_kept_is_found_until_it_is_forgotten_or_expires() {
        let kept = Kept::new(8);
        kept.keep(kept.reading(), 1, "a", LONG);
        kept.keep(kept.reading(), 2, "b", Duration::ZERO);
        assert_eq!((kept.get(&1), kept.get(&2), kept.get(&3)), (Some("a"), None, None));
        kept.forget(|key, _| *key == 1);
        assert_eq!(kept.get(&1), None);
    }

    #[test]
    fn a_reading_that_was_overtaken_by_a_change_is_not_kept() {
        let kept = Kept::new(8);
        let reading = kept.reading();
        kept.forget(|_, _| false);
        kept.keep(reading, 1, "old", LONG);
        assert_eq!(kept.get(&1), None);
    }

    #[test]
    fn it_never_grows_beyond_its_capacity() {
        let kept = Kept::new(3);
        for key in 0..100 {
            kept.keep(kept.reading(), key, key, LONG);
            assert_eq!(kept.get(&key), Some(key));
        }
        assert_eq!(kept.state().entries.len(), 3);
    }
}
