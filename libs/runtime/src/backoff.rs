//! Pauses between tries.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);

/// Short enough that a service is back within seconds of its database.
const LONGEST: Duration = Duration::from_secs(2);

/// Pauses that double up to two seconds. Each is a random part, at least half, of its length, so that processes that
/// lost the same database at the same moment do not come back to it at the same moment.
pub(crate) struct Backoff {
    length: Duration,
}

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self { length: FIRST }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let length = self.length;
        self.length = (length * 2).min(LONGEST);
        length.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_differ() {
        let mut backoff = Backoff::new();
        let pauses: Vec<Duration> = (0..50).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= FIRST && pauses[0] >= FIRST / 2);
        let late = &pauses[10..];
        assert!(late.iter().all(|pause| (LONGEST / 2..=LONGEST).contains(pause)), "{late:?}");
        assert!(late.iter().any(|pause| *pause != late[0]), "{late:?}");
    }
}
