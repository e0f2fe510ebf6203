//! How much is measured.

use std::time::Duration;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Sizes of all scenarios.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    /// Rounds that are interleaved.
    pub(crate) rounds: usize,
    /// One window of a round.
    pub(crate) window: Duration,
    /// One window with paced streams.
    pub(crate) stream_window: Duration,
    /// Streams at once, of the many.
    pub(crate) many_streams: usize,
    /// Events of each of the many streams.
    pub(crate) many_events: usize,
    /// Streams before memory is looked at again, in all and at once.
    pub(crate) memory_streams: [usize; 2],
    /// The wait after them.
    pub(crate) memory_rest: Duration,
    /// How long pairs are counted, in each round.
    pub(crate) pairs_window: Duration,
    /// For how long a transaction has been open beside the admissions.
    pub(crate) open_transaction: Duration,
    /// How long admissions are timed beside it, and without it before and after.
    pub(crate) beside_window: Duration,
}

impl Scale {
    /// What figures are reported from: about 25 minutes.
    pub(crate) fn full() -> Self {
        Self {
            rounds: 15,
            window: seconds(2),
            stream_window: seconds(4),
            many_streams: 512,
            many_events: 250,
            memory_streams: [1000, 250],
            memory_rest: seconds(60),
            pairs_window: seconds(5),
            open_transaction: seconds(600),
            beside_window: seconds(60),
        }
    }

    /// About three minutes.
    pub(crate) fn quick() -> Self {
        Self {
            rounds: 5,
            window: seconds(1),
            stream_window: seconds(2),
            many_events: 100,
            memory_rest: seconds(10),
            pairs_window: seconds(3),
            open_transaction: seconds(20),
            beside_window: seconds(10),
            ..Self::full()
        }
    }

    /// A moment.
    pub(crate) fn moment() -> Self {
        let moment = Duration::from_millis(100);
        Self {
            rounds: 1,
            window: moment,
            stream_window: moment,
            many_streams: 16,
            many_events: 5,
            memory_streams: [16, 8],
            memory_rest: moment,
            pairs_window: moment,
            open_transaction: moment,
            beside_window: moment,
        }
    }
}
