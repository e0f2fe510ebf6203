//! Which connections' documents may be begun: a provider that keeps failing pauses the stores it embeds, instead of
//! failing their documents one after the other.
//!
//! The breakers are those of this process, so each worker finds out on its own. While a breaker is open its stores are
//! passed over by the claim; when it would let one call through, one document is claimed to make it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::ConnectionId;
use providers::{BreakerState, Breakers};

/// The documents that run here, by the connection that embeds them. Cheap to clone; all clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    running: Arc<Mutex<HashMap<ConnectionId, usize>>>,
}

/// A document that runs. Dropped when it does no more.
#[derive(Debug)]
pub(crate) struct Running {
    connection: ConnectionId,
    lanes: Lanes,
}

/// What the next claim has to know of connections that fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pauses {
    /// Nothing is claimed that they embed.
    pub(crate) left_alone: Vec<ConnectionId>,
    /// One document is, to try them.
    pub(crate) on_trial: Vec<ConnectionId>,
}

impl Lanes {
    /// Counts a document in.
    pub(crate) fn enter(&self, connection: ConnectionId) -> Running {
        self.with(|running| *running.entry(connection).or_default() += 1);
        Running { connection, lanes: self.clone() }
    }

    /// What the breakers say now. A connection that may be tried is left alone while a document that may try it runs.
    pub(crate) fn pauses(&self, breakers: &Breakers) -> Pauses {
        let mut pauses = Pauses::default();
        for (connection, state) in breakers.states() {
            match state {
                BreakerState::Closed => {}
                BreakerState::HalfOpen if !self.with(|running| running.contains_key(&connection)) => {
                    pauses.on_trial.push(connection);
                }
                BreakerState::HalfOpen | BreakerState::Open => pauses.left_alone.push(connection),
            }
        }
        pauses
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<ConnectionId, usize>) -> T) -> T {
        // A panic while the map was held leaves it as it was: every change is one entry.
        work(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.lanes.with(|running| {
            let left = running.get(&self.connection).map_or(0, |count| count.saturating_sub(1));
            if left == 0 {
                running.remove(&self.connection);
            } else {
                running.insert(self.connection, left);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use providers::UpstreamError;

    use super::*;

    const DOWN: ConnectionId = ConnectionId(7);

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_fails_is_left_alone_and_then_tried_with_one_document() {
        let (lanes, breakers) = (Lanes::default(), Breakers::new());
        let alone = Pauses { left_alone: vec![DOWN], on_trial: Vec::new() };
        breakers.admit(ConnectionId(8)).unwrap().succeeded();
        assert_eq!(lanes.pauses(&breakers), Pauses::default());
        let before = lanes.enter(DOWN);
        while breakers.open_for(DOWN).is_none() {
            breakers.admit(DOWN).unwrap().failed(&UpstreamError::Truncated);
        }
        assert_eq!(lanes.pauses(&breakers), alone);

        tokio::time::advance(breakers.open_for(DOWN).unwrap() + Duration::from_millis(1)).await;
        assert_eq!(lanes.pauses(&breakers), alone, "one runs that may try it");
        let other = lanes.enter(DOWN);
        drop(before);
        assert_eq!(lanes.pauses(&breakers), alone);
        drop(other);
        assert_eq!(lanes.pauses(&breakers), Pauses { left_alone: Vec::new(), on_trial: vec![DOWN] });
        breakers.admit(DOWN).unwrap().succeeded();
        assert_eq!(lanes.pauses(&breakers), Pauses::default());
    }
}
