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
use crate::lease::Leases;

/// Stores looked at in one claim.
const WINDOW: i32 = 16;
/// For an answer to arrive that the server has given in time.
const ANSWER: Duration = Duration::from_millis(500);
const LISTEN_PAUSE: Duration = Duration::from_secs(5);

/// Claims and hands out.
pub(crate) struct Dispatcher {
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) leases: Leases,
    pub(crate) store: Store,
    pub(crate) owner: Arc<str>,
    pub(crate) workers: usize,
    pub(crate) lease: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) max_attempts: i32,
    /// The store after which the first claim begins.
    pub(crate) cursor: StoreId,
    pub(crate) jobs: TaskTracker,
}

impl Dispatcher {
    /// Claims until it is told to stop; jobs go on.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.workers));
        let woken = Arc::new(Notify::new());
        let listener = tokio::spawn(listen(self.store.clone(), Arc::clone(&woken)));
        let mut cursor = self.cursor;
        loop {
            let free = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                free = free_workers(&slots) => free,
            };
            if self.fill(free, &mut cursor, &stop).await {
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = woken.notified() => {}
                () = sleep(self.poll_interval.mul_f64(rand::random_range(0.9..1.1))) => {}
            }
        }
        listener.abort();
    }

    /// Fills the free workers. Returns whether there may be more for the next free one.
    async fn fill(&self, free: Vec<OwnedSemaphorePermit>, cursor: &mut StoreId, stop: &CancellationToken) -> bool {
        match self.claim(free, cursor, stop).await {
            Ok(full) => full,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "no documents could be claimed");
                false
            }
        }
    }

    /// Looks at stores after the cursor, round once, until every free worker has a document. Each begins at once: its
    /// lease runs from when its claim was sent.
    async fn claim(
        &self,
        mut free: Vec<OwnedSemaphorePermit>,
        cursor: &mut StoreId,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let promoting = self.in_time(self.store.promote_delayed_documents());
        match stop.run_until_cancelled(promoting).await {
            None => return Ok(false),
            Some(promoted) => promoted?,
        };
        let mut wrapped = false;
        while !free.is_empty() && !stop.is_cancelled() {
            let request = ClaimRequest {
                owner: &self.owner,
                cursor: *cursor,
                window: WINDOW,
                slots: i64::try_from(free.len()).unwrap_or(1),
                lease: self.lease,
                max_attempts: self.max_attempts,
            };
            let sent = Instant::now();
            // Not given up when told to stop: nobody would know of a claim that was made while nobody listened.
            let claimed = self.in_time(self.store.claim_documents(&request)).await?;
            if stop.is_cancelled() {
                self.hand_back(&claimed.documents).await;
                return Ok(false);
            }
            for claim in claimed.documents {
                let Some(permit) = free.pop() else { break };
                self.start(claim, sent, permit);
            }
            match claimed.window_end {
                Some(end) => *cursor = end,
                None if wrapped || *cursor == StoreId(0) => return Ok(free.is_empty()),
                None => {
                    wrapped = true;
                    *cursor = StoreId(0);
                }
            }
        }
        Ok(free.is_empty())
    }

    /// Waits as long as the server works on it, and a little for its answer.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(patience(self.lease) + ANSWER, work).await.unwrap_or(Err(StoreError::Conflict))
    }

    /// What was claimed while this process was told to stop is for others.
    async fn hand_back(&self, claims: &[Claim]) {
        let keys: Vec<_> = claims.iter().map(|claim| claim.key).collect();
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.in_time(self.store.hand_back_documents(&keys)).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                documents = keys.len(),
                "documents could not be put back; their leases lapse"
            );
        }
    }

    fn start(&self, claim: Claim, claimed: Instant, permit: OwnedSemaphorePermit) {
        let lease = self.leases.keep(claim.key, claimed);
        let workshop = Arc::clone(&self.workshop);
        tracing::info!(
            document = claim.key.document.0,
            store = claim.store.0,
            claim_token = claim.key.token,
            attempt = claim.attempts,
            "a document was claimed"
        );
        self.jobs.spawn(async move {
            workshop.work(claim, lease).await;
            drop(permit);
        });
    }
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
        let (jobs, leases) = (TaskTracker::new(), Leases::new(fixture.store.clone(), LEASE));
        let dispatcher = || Dispatcher {
            workshop: Arc::clone(&fixture.workshop),
            leases: leases.clone(),
            store: fixture.store.clone(),
            owner: Arc::from("h/1/aaaaaaaa"),
            workers: 2,
            lease: LEASE,
            poll_interval: Duration::from_secs(60),
            max_attempts: 3,
            cursor: StoreId(0),
            jobs: jobs.clone(),
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
