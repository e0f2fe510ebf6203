//! One dispatcher a process: claims as many documents as it has free workers.

use std::sync::Arc;
use std::time::Duration;

use domain::StoreId;
use store::queue::{Claim, ClaimRequest, patience};
use store::{Store, StoreError, Topic};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::job::Workshop;
use crate::lanes::Lanes;
use crate::lease::Leases;
use crate::tally::Counted;

/// Stores looked at in one claim.
const WINDOW: i32 = 16;
/// For an answer to arrive that the server has given in time.
const ANSWER: Duration = Duration::from_millis(500);
const LISTEN_PAUSE: Duration = Duration::from_secs(5);
/// Until those are done who were at the same documents.
const SOON: Duration = Duration::from_millis(50);

/// Claims and hands out.
pub(crate) struct Dispatcher {
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) leases: Leases,
    pub(crate) owner: Arc<str>,
    pub(crate) workers: usize,
    pub(crate) poll_interval: Duration,
    /// The store after which the first claim begins.
    pub(crate) cursor: StoreId,
    pub(crate) jobs: TaskTracker,
    pub(crate) lanes: Lanes,
    /// Room for one suspect: a document that workers may have died of is worked on beside no other such one.
    pub(crate) suspects: Arc<Semaphore>,
}

/// When to look at the queue again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// For the next free worker: there may be more.
    AtOnce,
    /// Something is due that somebody else was at.
    Soon,
    /// With the next poll, unless something wakes us before.
    AtPoll,
}

impl Dispatcher {
    /// Claims until it is told to stop; jobs go on.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.workers));
        let woken = Arc::new(Notify::new());
        let listener = tokio::spawn(listen(self.workshop.store.clone(), Arc::clone(&woken)));
        let mut cursor = self.cursor;
        loop {
            let free = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                free = free_workers(&slots) => free,
            };
            let next = self.claim(free, &mut cursor, &woken, &stop).await.unwrap_or_else(|error| {
                tracing::warn!(error = &error as &dyn std::error::Error, "no documents could be claimed");
                Next::AtPoll
            });
            let pause = match next {
                Next::AtOnce => continue,
                Next::Soon => jittered(SOON, 0.5),
                Next::AtPoll => jittered(self.poll_interval, 0.1),
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = woken.notified() => {}
                () = sleep(pause) => {}
            }
        }
        listener.abort();
    }

    /// Looks at stores after the cursor, round once, until every free worker has a document. Each begins at once: its
    /// lease runs from when its claim was sent.
    async fn claim(
        &self,
        mut free: Vec<OwnedSemaphorePermit>,
        cursor: &mut StoreId,
        woken: &Arc<Notify>,
        stop: &CancellationToken,
    ) -> Result<Next, StoreError> {
        let promoting = self.in_time(self.workshop.store.promote_delayed_documents());
        match stop.run_until_cancelled(promoting).await {
            None => return Ok(Next::AtPoll),
            Some(promoted) => promoted?,
        };
        let (mut wrapped, mut contended) = (false, false);
        while !free.is_empty() && !stop.is_cancelled() {
            let mut room = Arc::clone(&self.suspects).try_acquire_owned().ok();
            let pauses = self.lanes.pauses(self.workshop.providers.breakers());
            let request = ClaimRequest {
                owner: &self.owner,
                cursor: *cursor,
                window: WINDOW,
                slots: i64::try_from(free.len()).unwrap_or(1),
                lease: self.workshop.lease,
                max_attempts: self.workshop.max_attempts,
                left_alone: &pauses.left_alone,
                on_trial: &pauses.on_trial,
                suspects: i64::from(room.is_some()),
            };
            let sent = Instant::now();
            // Not given up when told to stop: nobody would know of a claim that was made while nobody listened.
            let claimed = self.in_time(self.workshop.store.claim_documents(&request)).await?;
            if stop.is_cancelled() {
                self.hand_back(&claimed.documents).await;
                return Ok(Next::AtPoll);
            }
            contended |= claimed.contended;
            for claim in claimed.documents {
                let Some(worker) = free.pop() else { break };
                let room = room.take_if(|_| claim.is_suspect());
                self.start(claim, sent, (worker, room), Arc::clone(woken));
            }
            match claimed.next_cursor {
                Some(end) => *cursor = end,
                None if wrapped || *cursor == StoreId(0) => break,
                None => {
                    wrapped = true;
                    *cursor = StoreId(0);
                }
            }
        }
        Ok(match (free.is_empty(), contended) {
            (true, _) => Next::AtOnce,
            (false, true) => Next::Soon,
            (false, false) => Next::AtPoll,
        })
    }

    /// Waits as long as the server works on it, and a little for its answer.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(patience(self.workshop.lease) + ANSWER, work).await.unwrap_or(Err(StoreError::Conflict))
    }

    /// What was claimed while this process was told to stop is for others.
    async fn hand_back(&self, claims: &[Claim]) {
        let keys: Vec<_> = claims.iter().map(|claim| claim.key).collect();
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.in_time(self.workshop.store.hand_back_documents(&keys)).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                documents = keys.len(),
                "documents could not be put back; their leases lapse"
            );
        }
    }

    fn start(
        &self,
        claim: Claim,
        claimed: Instant,
        permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
        woken: Arc<Notify>,
    ) {
        let lease = self.leases.keep(claim.key, claimed);
        let running = self.lanes.enter(claim.connection);
        let workshop = Arc::clone(&self.workshop);
        workshop.tally.count(Counted::Claimed);
        tracing::info!(
            document = claim.key.document.0,
            store = claim.store.0,
            claim_token = claim.key.token,
            attempt = claim.attempts,
            "a document was claimed"
        );
        self.jobs.spawn(async move {
            workshop.work(claim, lease).await;
            drop((running, permits));
            // Its store or its connection may have waited for just this one to end.
            woken.notify_one();
        });
    }
}

/// The duration, longer or shorter by up to a share of it at random, so that replicas do not look all at once.
pub(crate) fn jittered(duration: Duration, share: f64) -> Duration {
    duration.mul_f64(rand::random_range(1.0 - share..1.0 + share))
}

/// Waits until a worker is free, since a document is claimed only for one that can begin; returns all that are.
async fn free_workers(slots: &Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    let mut free: Vec<_> = Arc::clone(slots).acquire_owned().await.into_iter().collect();
    while let Ok(permit) = Arc::clone(slots).try_acquire_owned() {
        free.push(permit);
    }
    free
}

/// Wakes the dispatcher at notifications, where sessions can listen. Only a hint: the dispatcher polls as well.
async fn listen(store: Store, woken: Arc<Notify>) {
    loop {
        match store.listen(Topic::Documents).await {
            Ok(None) => return,
            Ok(Some(mut listener)) => {
                while listener.heard().await.is_ok() {
                    woken.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the queue's notifications cannot be heard");
            }
        }
        sleep(LISTEN_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use testkit::until;

    use super::*;
    use crate::fixture::{Fixture, LEASE};

    #[tokio::test]
    async fn a_claim_that_is_answered_after_the_stop_is_handed_back_and_nothing_is_claimed_any_more() {
        let fixture = Fixture::new("http://127.0.0.1:1/v1", 3).await.unwrap();
        let (jobs, leases) = (TaskTracker::new(), Leases::new(fixture.store.clone(), LEASE, Arc::default()));
        let dispatcher = || Dispatcher {
            workshop: Arc::clone(&fixture.workshop),
            leases: leases.clone(),
            owner: Arc::from("h/1/aaaaaaaa"),
            workers: 2,
            poll_interval: Duration::from_secs(60),
            cursor: StoreId(0),
            jobs: jobs.clone(),
            lanes: Lanes::default(),
            suspects: Arc::new(Semaphore::new(1)),
        };
        let facts = async || fixture.database.document_facts(fixture.document).await.unwrap();
        let before = facts().await;

        let lock = fixture.database.lock_table("document_stores").await.unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(dispatcher().run(stop.clone()));
        until("the claim waits", async || fixture.database.has_lock_waiters().await).await.unwrap();
        stop.cancel();
        lock.release().await.unwrap();
        running.await.unwrap();
        let after = facts().await;
        assert_eq!((after.status.as_str(), after.attempts), ("pending", 0));
        assert!(after.claim_token > before.claim_token, "it was claimed in between");
        assert!(jobs.is_empty() && leases.keys().is_empty());

        dispatcher().run(stop).await;
        assert_eq!(facts().await, after);
    }
}
