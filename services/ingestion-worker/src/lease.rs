//! Keeping claims: one renewal for all of them, and a deadline of our own for when the database is out of reach.
//!
//! The arithmetic: a lease of L is renewed every L/3, and a renewal that has no answer after L/4 is given up, so that
//! the next one begins in time. A renewal counts from the moment it was sent, since the database may have granted it any
//! time after that. At the moment when a claim has not been renewed for L less a margin of L/6, this process drops it on
//! its own, whatever the renewals are waiting for. So a worker that cannot reach the database stops before its lease
//! ends, with two renewals missed and margin left.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::DocumentId;
use store::Store;
use store::queue::ClaimKey;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::tally::{Counted, Tally};

const RENEWALS_PER_LEASE: u32 = 3;
/// The part of a lease that a renewal may take.
const RENEWAL_PARTS: u32 = 4;
const MARGIN_PARTS: u32 = 6;

/// The claims of this process that are being worked on.
#[derive(Clone)]
pub(crate) struct Leases {
    held: Arc<Mutex<HashMap<DocumentId, Held>>>,
    kept: Arc<Notify>,
    given_up: CancellationToken,
    store: Store,
    lease: Duration,
    tally: Arc<Tally>,
}

struct Held {
    key: ClaimKey,
    /// Past this the claim is no longer ours to use, whatever the database says.
    until: Instant,
    /// Its verdict is on the way: that the claim is gone from the database is then no loss.
    ending: bool,
    lost: CancellationToken,
}

/// A claim that is being kept. Dropping it ends the keeping, not the claim.
pub(crate) struct Lease {
    key: ClaimKey,
    lost: CancellationToken,
    leases: Leases,
}

impl Lease {
    /// Cancelled when the claim is lost or given up: nothing may be written for it any more.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Cancelled when this process gives up all its claims, because it stops.
    pub(crate) fn given_up(&self) -> &CancellationToken {
        &self.leases.given_up
    }

    /// Whether the claim is still ours by our own clock, looked at now: a process that was stopped may get here before
    /// whoever cancels what is overdue.
    pub(crate) fn holds(&self) -> bool {
        self.leases.drop_overdue();
        !self.lost.is_cancelled()
    }

    /// Said before the statement that ends the claim is sent. The claim is kept on, in case that fails.
    pub(crate) fn ending(&self) {
        self.leases.with(|held| {
            if let Some(held) = held.get_mut(&self.key.document).filter(|held| held.key == self.key) {
                held.ending = true;
            }
        });
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
    pub(crate) fn new(store: Store, lease: Duration, tally: Arc<Tally>) -> Self {
        Self { held: Arc::default(), kept: Arc::default(), given_up: CancellationToken::new(), store, lease, tally }
    }

    /// Begins to keep a claim whose statement was sent at `claimed`. Once all were given up, so is this one.
    pub(crate) fn keep(&self, key: ClaimKey, claimed: Instant) -> Lease {
        let lost = self.given_up.child_token();
        let held = Held { key, until: claimed + self.usable(), ending: false, lost: lost.clone() };
        self.with(|all| all.insert(key.document, held));
        self.kept.notify_one();
        Lease { key, lost, leases: self.clone() }
    }

    /// The claims that are being kept.
    pub(crate) fn keys(&self) -> Vec<ClaimKey> {
        self.with(|held| held.values().map(|held| held.key).collect())
    }

    /// Gives up every claim, so that the process can put the documents back.
    pub(crate) fn give_up_all(&self) {
        self.given_up.cancel();
    }

    /// Renews, and drops what is overdue, until it is dropped itself.
    pub(crate) async fn run(self) {
        tokio::join!(self.keep_renewing(), self.keep_dropping());
    }

    async fn keep_renewing(&self) {
        let mut turn = interval(self.lease / RENEWALS_PER_LEASE);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turn.tick().await;
            self.renew().await;
        }
    }

    /// Not at the turns of the renewals: they may all be waiting for a database that does not answer.
    async fn keep_dropping(&self) {
        loop {
            self.drop_overdue();
            let next = self
                .with(|held| held.values().filter(|claim| !claim.lost.is_cancelled()).map(|claim| claim.until).min());
            tokio::select! {
                // A renewal since then has moved the deadline: it is looked at again.
                () = async { match next { Some(next) => sleep_until(next).await, None => pending().await } } => {}
                () = self.kept.notified() => {}
            }
        }
    }

    async fn renew(&self) {
        let keys = self.keys();
        if keys.is_empty() {
            return;
        }
        let sent = Instant::now();
        let answer = timeout(self.lease / RENEWAL_PARTS, self.store.renew_leases(&keys, self.lease)).await;
        match answer {
            Ok(Ok(renewed)) => self.with(|held| {
                for key in &keys {
                    let Some(claim) = held.get_mut(&key.document).filter(|claim| claim.key == *key) else { continue };
                    if renewed.contains(&key.document) {
                        claim.until = sent + self.usable();
                    } else if !claim.ending && !claim.lost.is_cancelled() {
                        tracing::warn!(
                            document = key.document.0,
                            claim_token = key.token,
                            leases_taken_over = self.tally.count(Counted::TakenOver),
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
    }

    fn drop_overdue(&self) {
        let now = Instant::now();
        self.with(|held| {
            for claim in held.values().filter(|claim| claim.until <= now && !claim.lost.is_cancelled()) {
                tracing::warn!(
                    document = claim.key.document.0,
                    claim_token = claim.key.token,
                    leases_overdue = self.tally.count(Counted::Overdue),
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
    use ::config::Database;

    use super::*;
    use crate::fixture::{Fixture, LEASE};

    #[test]
    fn the_arithmetic_of_a_lease_leaves_room() {
        for lease in [Duration::from_secs(3), LEASE] {
            let renewal = lease / RENEWALS_PER_LEASE;
            let usable = lease - lease / MARGIN_PARTS;
            assert!(lease / RENEWAL_PARTS < renewal, "a renewal is over when the next begins");
            assert!(2 * renewal < usable, "two renewals may fail before the claim is dropped");
            assert!(usable < lease, "it is dropped before another may take it");
        }
    }

    fn key(document: i64) -> ClaimKey {
        ClaimKey { document: DocumentId(document), token: 1, content_version: 1 }
    }

    /// A store that refuses every statement at once.
    async fn closed_store() -> Store {
        let config = Database {
            url: domain::Secret::new("postgres://nobody@127.0.0.1:1/nothing"),
            pooler: ::config::Pooler::None,
            max_connections: 3,
            acquire_timeout: Duration::from_secs(5),
            schema: "public".to_owned(),
        };
        let store = Store::new(&config, "test").unwrap();
        store.close().await;
        store
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_cannot_be_renewed_is_dropped_on_time_whenever_it_was_made() {
        let leases = Leases::new(closed_store().await, LEASE, Arc::default());
        let running = tokio::spawn(leases.clone().run());
        let usable = leases.usable();
        // Between the turns of the renewals, and one right after such a turn.
        for (document, pause) in [(1, LEASE / 12), (2, LEASE / 4), (3, LEASE / 3)] {
            tokio::time::sleep(pause).await;
            let claimed = Instant::now();
            let lease = leases.keep(key(document), claimed);
            lease.lost().cancelled().await;
            let held = claimed.elapsed();
            assert!(held >= usable && held <= usable + Duration::from_millis(2), "{held:?} of {usable:?}");
            assert!(!lease.given_up().is_cancelled());
        }
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn claims_are_given_up_together_also_those_that_come_late() {
        let leases = Leases::new(closed_store().await, LEASE, Arc::default());
        let early = leases.keep(key(1), Instant::now());
        leases.give_up_all();
        let late = leases.keep(key(2), Instant::now());
        for lease in [early, late] {
            assert!(lease.lost().is_cancelled() && lease.given_up().is_cancelled());
        }
    }

    #[tokio::test]
    async fn a_claim_that_ended_by_its_own_verdict_is_not_taken_for_lost() {
        let fixture = Fixture::new("http://127.0.0.1:1/v1", 3).await.unwrap();
        let store = fixture.store.clone();
        let leases = Leases::new(store.clone(), LEASE, Arc::default());
        let key = fixture.claim().await.unwrap().key;
        let lease = leases.keep(key, Instant::now());
        leases.renew().await;
        assert!(!lease.lost().is_cancelled());
        assert!(store.fail_document(key, domain::DocumentFailure::Internal).await.unwrap());
        lease.ending();
        leases.renew().await;
        assert!(!lease.lost().is_cancelled(), "it is over, not lost");
        drop(lease);
        let lease = leases.keep(key, Instant::now());
        leases.renew().await;
        assert!(lease.lost().is_cancelled(), "without a verdict of its own it is lost");
    }
}
