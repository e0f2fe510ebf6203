//! When another process may be given up.
//!
//! Only if its beat was read twice without a change, at least [`Observer::after_us`] apart by the database's clock, and if
//! this process was well all the time in between: every beat of its own got through, and it read the others' without a
//! longer break. Time during which the database was away, or this process stopped, thus counts for nobody.

use std::collections::HashMap;

use store::instances::{Beat, InstanceId};

/// A longer break between two readings is one in which this process did not watch.
const LONGEST_BREAK_US: i64 = 10_000_000;

/// A beat, and when it was first read, in microseconds of the database's clock.
#[derive(Clone, Copy, Debug)]
struct Seen {
    beats: i64,
    since_us: i64,
}

/// What a process knows of the others' beats.
#[derive(Debug)]
pub(crate) struct Observer {
    after_us: i64,
    seen: HashMap<InstanceId, Seen>,
    missed_beats: u64,
    last_read_us: i64,
}

impl Observer {
    pub(crate) fn new(after_us: i64) -> Self {
        Self { after_us, seen: HashMap::new(), missed_beats: 0, last_read_us: i64::MIN }
    }

    /// The others could not be read.
    pub(crate) fn interrupted(&mut self) {
        self.seen.clear();
    }

    /// Takes in a reading, with the number of own beats that have failed so far. Returns who may be given up.
    pub(crate) fn read(&mut self, own: InstanceId, now_us: i64, missed_beats: u64, beats: &[Beat]) -> Vec<Beat> {
        let paused = now_us.saturating_sub(self.last_read_us) > LONGEST_BREAK_US;
        // A clock that steps back makes what was read before worthless.
        if paused || missed_beats != self.missed_beats || now_us < self.last_read_us {
            self.seen.clear();
        }
        self.missed_beats = missed_beats;
        self.last_read_us = now_us;
        let before = std::mem::take(&mut self.seen);
        let mut suspects = Vec::new();
        for beat in beats.iter().filter(|beat| beat.id != own) {
            let seen = match before.get(&beat.id) {
                Some(seen) if seen.beats == beat.beats => *seen,
                _ => Seen { beats: beat.beats, since_us: now_us },
            };
            if now_us - seen.since_us >= self.after_us {
                suspects.push(*beat);
            }
            self.seen.insert(beat.id, seen);
        }
        suspects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    struct Scene {
        observer: Observer,
        own: InstanceId,
        other: InstanceId,
    }

    fn scene() -> Scene {
        Scene { observer: Observer::new(60 * SECOND), own: InstanceId::new(), other: InstanceId::new() }
    }

    impl Scene {
        /// Reads every two seconds; `beats` and `missed` say what is read then. Returns the second of the first suspicion.
        fn watch(&mut self, until: i64, beats: impl Fn(i64) -> i64, missed: impl Fn(i64) -> u64) -> Option<i64> {
            (0..=until).step_by(2).find(|second| {
                let read = [Beat { id: self.own, beats: 1 }, Beat { id: self.other, beats: beats(*second) }];
                let suspects = self.observer.read(self.own, second * SECOND, missed(*second), &read);
                assert!(suspects.iter().all(|suspect| suspect.id == self.other), "nobody gives itself up");
                !suspects.is_empty()
            })
        }
    }

    #[test]
    fn a_silent_process_is_given_up_after_the_time_and_not_before() {
        assert_eq!(scene().watch(200, |_| 7, |_| 0), Some(60));
    }

    #[test]
    fn a_beating_process_never_is() {
        assert_eq!(scene().watch(1000, |second| second / 20, |_| 0), None);
    }

    #[test]
    fn an_own_beat_that_failed_starts_the_time_anew() {
        assert_eq!(scene().watch(200, |_| 7, |second| u64::from(second >= 40)), Some(100));
    }

    #[test]
    fn a_reading_that_failed_starts_the_time_anew() {
        let mut scene = scene();
        assert_eq!(scene.watch(58, |_| 7, |_| 0), None);
        scene.observer.interrupted();
        let read = [Beat { id: scene.other, beats: 7 }];
        assert!(scene.observer.read(scene.own, 60 * SECOND, 0, &read).is_empty());
    }

    #[test]
    fn a_process_that_was_stopped_itself_judges_nobody_by_that_time() {
        let mut scene = scene();
        assert_eq!(scene.watch(10, |_| 7, |_| 0), None);
        let read = [Beat { id: scene.other, beats: 7 }];
        assert!(scene.observer.read(scene.own, 100 * SECOND, 0, &read).is_empty(), "it was not watching");
    }
}
