//! What a process does for calls that nobody would settle: its own admissions whose reply was lost, and the calls of
//! processes that are gone.

use std::sync::Arc;
use std::time::Duration;

use domain::RequestId;
use store::instances::Standing;
use store::ledger::{LedgerEpoch, LedgerLink};
use store::{Store, StoreError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::live::LiveCalls;
use crate::observer::Observer;

/// Between two looks at the others' beats.
const LOOK: Duration = Duration::from_secs(2);

/// Between two comparisons of the own open rows with the calls there are.
const COMPARE: Duration = Duration::from_secs(30);

/// The same while admissions are in doubt that are not old enough yet.
const COMPARE_IN_DOUBT: Duration = Duration::from_secs(5);

/// An admission that is older has been answered, or never will be: its statement ended long before.
const ANSWERED_BY: Duration = Duration::from_secs(30);

/// Between two looks for calls of processes that are gone, unless one was just given up.
const SWEEP: Duration = Duration::from_secs(10);

/// Calls that are settled for others in one statement, which holds their tiers for that long.
const AT_ONCE: u32 = 64;

/// The keeper of a process.
pub(crate) struct Keeper {
    pub(crate) store: Store,
    pub(crate) link: LedgerLink,
    pub(crate) standing: Standing,
    pub(crate) live: LiveCalls,
    /// Told when admissions may have been made that nobody knows of.
    pub(crate) doubts: Arc<Notify>,
    /// Where lanes hear of the running epoch: those that admit nothing put their calls back all the same.
    pub(crate) epochs: watch::Sender<Option<LedgerEpoch>>,
    /// After how long without a beat a process is given up (`LEDGER_ORPHAN_AFTER`).
    pub(crate) orphan_after: Duration,
}

impl Keeper {
    /// Works until it is aborted; whatever it is at is done again by others or later.
    pub(crate) async fn run(mut self) {
        let after_us = i64::try_from(self.orphan_after.as_micros()).unwrap_or(i64::MAX);
        let mut observer = Observer::new(after_us);
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut compared, mut swept) = (Instant::now(), None);
        let mut doubted: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.doubts.notified() => doubted = Some(Instant::now()),
            }
            let gave_up = match self.look(&mut observer).await {
                Ok(gave_up) => gave_up,
                Err(error) => {
                    observer.interrupted();
                    complain(&error, "the other processes cannot be watched");
                    continue;
                }
            };
            // What is in doubt now can be told from what is on its way only when it is old enough.
            let in_doubt = doubted.is_some_and(|doubted| compared.saturating_duration_since(doubted) <= ANSWERED_BY);
            if compared.elapsed() >= if in_doubt { COMPARE_IN_DOUBT } else { COMPARE } {
                compared = Instant::now();
                if let Err(error) = self.compare().await {
                    complain(&error, "open calls could not be compared");
                }
            }
            if gave_up || swept.is_none_or(|swept: Instant| swept.elapsed() >= SWEEP) {
                swept = Some(Instant::now());
                if let Err(error) = self.sweep().await {
                    complain(&error, "calls of processes that are gone could not be settled");
                }
            }
        }
    }

    /// Reads the others' beats and gives those up that have not beaten for long enough.
    async fn look(&mut self, observer: &mut Observer) -> Result<bool, StoreError> {
        let own = self.standing.id();
        let missed = self.standing.missed_beats();
        self.epochs.send_replace(Some(self.link.reassert(own, &[]).await?));
        let (now_us, beats) = self.store.list_beats().await?;
        let mut gave_up = false;
        for suspect in observer.read(own, now_us, missed, &beats) {
            if self.store.mark_instance_lost(own, suspect).await? {
                tracing::warn!(instance = %suspect.id, "gave up a process that does not beat any more");
                gave_up = true;
            }
        }
        Ok(gave_up)
    }

    /// Takes back admissions of this process that it knows nothing of: nothing was sent for them.
    async fn compare(&mut self) -> Result<(), StoreError> {
        // Read before the calls: what is admitted in between is too young to be in it.
        let open = self.link.list_open_calls(self.standing.id(), ANSWERED_BY).await?;
        let known = self.live.ids();
        let unknown: Vec<RequestId> = open.into_iter().filter(|call| !known.contains(call)).collect();
        for calls in unknown.chunks(AT_ONCE as usize) {
            match self.link.forget_calls(calls).await {
                // Settled in between.
                Ok(0) => {}
                Ok(calls) => tracing::warn!(calls, "took back admissions whose reply was lost"),
                // Somebody has locked one of their projects; the others need not wait for it.
                Err(StoreError::Conflict) => complain(&StoreError::Conflict, "open calls wait for a lock"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Settles the calls of processes that are gone.
    async fn sweep(&mut self) -> Result<(), StoreError> {
        for instance in self.link.list_orphaned_instances(self.orphan_after).await? {
            let mut settled = 0;
            loop {
                match self.link.give_up(instance, self.orphan_after, AT_ONCE).await {
                    Ok(0) => break,
                    Ok(calls) => settled += calls,
                    // Somebody has locked one of their projects; the other instances' calls need not wait for it.
                    Err(StoreError::Conflict) => {
                        complain(&StoreError::Conflict, "calls of a process that is gone wait for a lock");
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            if settled > 0 {
                self.link.flush().await?;
                tracing::warn!(%instance, calls = settled, "settled the calls of a process that is gone by what they held");
            }
        }
        Ok(())
    }
}

fn complain(error: &StoreError, what: &'static str) {
    let error: &dyn std::error::Error = error;
    tracing::warn!(error, "{what}");
}
