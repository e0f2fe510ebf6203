//! One dispatcher a process: claims as many documents as it has free workers.

use std::sync::Arc;
use std::time::Duration;

use domain::StoreId;
use store::queue::{Claim, ClaimRequest};
use store::{Store, StoreError, Topic};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::job::Workshop;
use crate::lease::Leases;

/// Stores looked at in one claim.
const WINDOW: i32 = 16;
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
    pub(crate) jobs: TaskTracker,
}

impl Dispatcher {
    /// Claims until it is told to stop; jobs go on.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.workers));
        let woken = Arc::new(Notify::new());
        let listener = tokio::spawn(listen(self.store.clone(), Arc::clone(&woken)));
        // Somewhere of its own, so that workers that start together do not all begin with the same stores.
        let mut cursor = StoreId(rand::random_range(0..=1_000));
        loop {
            let free = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                free = free_workers(&slots) => free,
            };
            // Not given up half-way: documents of a claim whose answer nobody reads are nobody's until their lease lapses.
            if self.fill(free, &mut cursor).await {
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
    async fn fill(&self, free: Vec<OwnedSemaphorePermit>, cursor: &mut StoreId) -> bool {
        let wanted = free.len();
        match self.claim(wanted, cursor).await {
            Ok((claims, sent)) => {
                let full = !claims.is_empty() && claims.len() == wanted;
                for (claim, permit) in claims.into_iter().zip(free) {
                    self.start(claim, sent, permit);
                }
                full
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "no documents could be claimed");
                false
            }
        }
    }

    /// Looks at stores after the cursor, round once, until enough is claimed.
    async fn claim(&self, wanted: usize, cursor: &mut StoreId) -> Result<(Vec<Claim>, Instant), StoreError> {
        let patience = (self.lease / 4).min(Duration::from_secs(10));
        let late = || StoreError::Conflict;
        timeout(patience, self.store.promote_delayed_documents()).await.map_err(|_| late())??;
        let sent = Instant::now();
        let mut claims = Vec::new();
        let mut wrapped = false;
        while claims.len() < wanted {
            let request = ClaimRequest {
                owner: &self.owner,
                cursor: *cursor,
                window: WINDOW,
                slots: i64::try_from(wanted - claims.len()).unwrap_or(1),
                lease: self.lease,
                max_attempts: self.max_attempts,
            };
            let claimed = match timeout(patience, self.store.claim_documents(&request)).await {
                Ok(Ok(claimed)) => claimed,
                // What was claimed before is kept; the rest comes with the next poll.
                Ok(Err(error)) if claims.is_empty() => return Err(error),
                Err(_) if claims.is_empty() => return Err(late()),
                Ok(Err(_)) | Err(_) => break,
            };
            claims.extend(claimed.documents);
            match claimed.window_end {
                Some(end) => *cursor = end,
                None if wrapped || *cursor == StoreId(0) => break,
                None => {
                    wrapped = true;
                    *cursor = StoreId(0);
                }
            }
        }
        Ok((claims, sent))
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
