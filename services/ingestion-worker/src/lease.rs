//! Keeping claims: one renewal for all of them, and a deadline of our own for when the database is out of reach.
//!
//! The arithmetic: a lease of L is renewed every L/3. A renewal counts from the moment it was sent, since the database
//! may have granted it any time after that. A claim that has not been renewed for L less a margin of L/6 is dropped by
//! this process on its own, before another may take it. So a worker that cannot reach the database stops before its
//! lease ends, with two renewals missed and margin left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::DocumentId;
use store::Store;
use store::queue::ClaimKey;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

const RENEWALS_PER_LEASE: u32 = 3;
const MARGIN_PARTS: u32 = 6;

/// The claims of this process that are being worked on.
#[derive(Clone)]
pub(crate) struct Leases {
    held: Arc<Mutex<HashMap<DocumentId, Held>>>,
    store: Store,
    lease: Duration,
}

struct Held {
    key: ClaimKey,
    /// Past this the claim is no longer ours to use, whatever the database says.
    until: Instant,
    lost: CancellationToken,
}

/// A claim that is being kept. Dropping it ends the keeping, not the claim.
pub(crate) struct Lease {
    key: ClaimKey,
    lost: CancellationToken,
    leases: Leases,
}

impl Lease {
    /// Cancelled when the claim is lost: nothing may be written for it any more.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.with(|held| {
            // The document may have been claimed again, by ourselves, while this lease was being given up.
            if held.get(&self.key.document).is_some_and(|other| other.key == self.key) {
                held.remove(&self.key.document);
            }
        });
    }
}

impl Leases {
    pub(crate) fn new(store: Store, lease: Duration) -> Self {
        Self { held: Arc::default(), store, lease }
    }

    /// Begins to keep a claim whose statement was sent at `claimed`.
    pub(crate) fn keep(&self, key: ClaimKey, claimed: Instant) -> Lease {
        let lost = CancellationToken::new();
        let held = Held { key, until: claimed + self.usable(), lost: lost.clone() };
        self.with(|all| all.insert(key.document, held));
        Lease { key, lost, leases: self.clone() }
    }

    /// The claims that are being kept.
    pub(crate) fn keys(&self) -> Vec<ClaimKey> {
        self.with(|held| held.values().map(|held| held.key).collect())
    }

    /// Gives up every claim: their jobs end as if the claims were lost.
    pub(crate) fn give_up_all(&self) {
        self.with(|held| held.values().for_each(|held| held.lost.cancel()));
    }

    /// Renews until it is dropped.
    pub(crate) async fn run(self) {
        let mut turn = interval(self.lease / RENEWALS_PER_LEASE);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turn.tick().await;
            self.renew().await;
        }
    }

    async fn renew(&self) {
        let keys = self.keys();
        if keys.is_empty() {
            return;
        }
        let sent = Instant::now();
        // A third of the lease is also how long the answer may take: the next try comes then.
        let answer = timeout(self.lease / 4, self.store.renew_leases(&keys, self.lease)).await;
        match answer {
            Ok(Ok(renewed)) => self.with(|held| {
                for key in &keys {
                    let Some(claim) = held.get_mut(&key.document).filter(|claim| claim.key == *key) else { continue };
                    if renewed.contains(&key.document) {
                        claim.until = sent + self.usable();
                    } else {
                        tracing::warn!(
                            document = key.document.0,
                            claim_token = key.token,
                            "lost ingestion lease; another replica took over"
                        );
                        claim.lost.cancel();
                    }
                }
            }),
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    claims = keys.len(),
                    "leases were not renewed"
                );
            }
            Err(_) => tracing::warn!(claims = keys.len(), "leases were not renewed in time"),
        }
        self.drop_overdue();
    }

    fn drop_overdue(&self) {
        let now = Instant::now();
        self.with(|held| {
            for claim in held.values().filter(|claim| claim.until <= now && !claim.lost.is_cancelled()) {
                tracing::warn!(
                    document = claim.key.document.0,
                    claim_token = claim.key.token,
                    "the lease could not be renewed; the document is dropped before another worker takes it"
                );
                claim.lost.cancel();
            }
        });
    }

    fn usable(&self) -> Duration {
        self.lease - self.lease / MARGIN_PARTS
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<DocumentId, Held>) -> T) -> T {
        // A panic while the map was held leaves it as it was: every change is one insert, remove or field.
        work(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_of_a_lease_leaves_room() {
        for lease in [Duration::from_secs(3), Duration::from_secs(120)] {
            let renewal = lease / RENEWALS_PER_LEASE;
            let usable = lease - lease / MARGIN_PARTS;
            assert!(2 * renewal < usable, "two renewals may fail before the claim is dropped");
            assert!(usable < lease, "it is dropped before another may take it");
        }
    }
}
