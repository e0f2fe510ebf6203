//! The ledger of a process.

use std::sync::Arc;
use std::time::Duration;

use store::Store;
use store::instances::Standing;
use store::ledger::{Ask, Denial, Headroom, OpenCallRow};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::call::{OpenCall, Verdict};
use crate::error::LedgerError;
use crate::keeper::Keeper;
use crate::lane::{Lane, Reply, Ties, Waiting};
use crate::live::LiveCalls;
use crate::place::Places;
use crate::pulse::Pulse;
use crate::writer::{self, Writer};

/// Two statements at once keep one project's load from making every other one wait behind it.
const LANES: u32 = 2;
const LANE_CAPACITY: usize = 1024;

/// The connections of a ledger, beside those of the store's pool: the lanes, the writer and the keeper.
pub const CONNECTIONS: u32 = LANES + 2;

/// The answer to an ask.
pub enum Outcome {
    /// It may run; what it holds is settled when this ends.
    Open(Box<OpenCall>),
    /// A cap has no room.
    Denied(Denial),
    /// The key or project may not call at all.
    Refused {
        /// `key_revoked`, `key_expired`, `key_owner_inactive` or `project_not_granted`.
        code: String,
    },
}

/// Admits calls. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    lanes: Arc<[(mpsc::Sender<Waiting>, Arc<Pulse>)]>,
    live: LiveCalls,
    places: Places,
    patience: Duration,
}

/// The tasks behind a [`Ledger`], to be joined at shutdown.
pub struct LedgerTasks {
    lanes: Vec<JoinHandle<()>>,
    keeper: JoinHandle<()>,
    writer: JoinHandle<()>,
    stop_writer: oneshot::Sender<()>,
}

impl Ledger {
    /// Starts the ledger of a registered instance. Calls are opened under the id that it has at that moment: a process that
    /// was given up by the others goes on under another. Others are given up after `orphan_after` without a beat.
    #[must_use]
    pub fn start(store: &Store, standing: &Standing, orphan_after: Duration) -> (Self, LedgerTasks) {
        let (places, inbox, room) = Places::new(writer::CAPACITY);
        let (stop_writer, stopped) = oneshot::channel();
        let live = LiveCalls::new(LANES as usize);
        let doubts = Arc::new(Notify::new());
        let (epochs, seen_epoch) = watch::channel(None);
        let (wanted, asked_for) = mpsc::channel(LANES as usize);
        let writer = Writer::new(store.ledger_link(), standing.clone(), live.clone(), room);
        let writer = tokio::spawn(writer.run(inbox, asked_for, stopped));
        let (senders, lanes) = (0..LANES as usize)
            .map(|number| {
                let (sender, inbox) = mpsc::channel(LANE_CAPACITY);
                let pulse = Arc::new(Pulse::new());
                let ties = Ties {
                    pulse: Arc::clone(&pulse),
                    doubts: Arc::clone(&doubts),
                    seen_epoch: seen_epoch.clone(),
                    wanted: wanted.clone(),
                };
                let lane = Lane::new(number, store, standing.clone(), live.clone(), ties);
                ((sender, pulse), tokio::spawn(lane.run(inbox)))
            })
            .unzip::<_, _, Vec<_>, Vec<_>>();
        let keeper = Keeper {
            store: store.clone(),
            link: store.ledger_link(),
            standing: standing.clone(),
            live: live.clone(),
            doubts,
            epochs,
            orphan_after,
        };
        let keeper = tokio::spawn(keeper.run());
        let ledger = Self { lanes: senders.into(), live, places, patience: store.acquire_timeout() };
        (ledger, LedgerTasks { lanes, keeper, writer, stop_writer })
    }

    /// Reserves for a call. Dropping the future while it waits is safe: whatever was admitted is given back.
    ///
    /// # Errors
    /// [`LedgerError`], at the latest after `DB_ACQUIRE_TIMEOUT`. What is admitted after that is given back at once, or, if
    /// the answer is lost, within a minute.
    pub async fn admit(&self, ask: Ask) -> Result<Outcome, LedgerError> {
        timeout(self.patience, self.wait_for(ask)).await.map_err(|_| LedgerError::Unavailable)?
    }

    async fn wait_for(&self, ask: Ask) -> Result<Outcome, LedgerError> {
        let place = self.places.take().await?;
        let (lane, _) = self.lane(&ask)?;
        let (to, answer) = oneshot::channel();
        let waiting = Waiting { ask: Arc::new(ask), reply: Reply::Now { place, to } };
        lane.send(waiting).await.map_err(|_| LedgerError::ShuttingDown)?;
        answer.await.map_err(|_| LedgerError::ShuttingDown)?
    }

    /// Begins a call that no cap limits, as far as the caller knows, without waiting for the database: its row is on the
    /// way. If a cap was set in the meantime, or the key revoked, [`OpenCall::overruled`] says so. While the database is
    /// away or slow, or rows of the project are not written, this waits as [`Ledger::admit`] does.
    ///
    /// # Errors
    /// As for [`Ledger::admit`].
    pub async fn admit_unlimited(&self, ask: Ask) -> Result<Outcome, LedgerError> {
        let (lane, pulse) = self.lane(&ask)?;
        if !pulse.is_prompt(ask.project) {
            return self.admit(ask).await;
        }
        let begin = async {
            let place = self.places.take().await?;
            let sending = lane.reserve().await.map_err(|_| LedgerError::ShuttingDown)?;
            let output_tokens = ask.output_tokens.max(0);
            let row = OpenCallRow::held(Arc::new(ask), None, output_tokens);
            let (verdict, decided) = watch::channel(Verdict::Pending);
            self.live.keep(row.clone());
            let reply = Reply::Later { verdict, begun: Instant::now(), again: false };
            sending.send(Waiting { ask: Arc::clone(&row.ask), reply });
            Ok(Outcome::Open(Box::new(OpenCall::new(place, row, Headroom::default(), Some(decided)))))
        };
        timeout(self.patience, begin).await.map_err(|_| LedgerError::Unavailable)?
    }

    fn lane(&self, ask: &Ask) -> Result<&(mpsc::Sender<Waiting>, Arc<Pulse>), LedgerError> {
        self.lanes.get(self.live.lane_of(ask.project)).ok_or(LedgerError::Internal)
    }
}

impl LedgerTasks {
    /// Settles everything that is open or waiting, within the budget. Call it when no new call can be admitted any more.
    /// Returns whether all was settled; what was not stays open in the ledger, for the others to give up.
    pub async fn finish(self, budget: Duration) -> bool {
        let _ = self.stop_writer.send(());
        let abort = self.writer.abort_handle();
        let settled = timeout(budget, self.writer).await.is_ok_and(|joined| joined.is_ok());
        abort.abort();
        for task in self.lanes.into_iter().chain([self.keeper]) {
            task.abort();
            // Aborted or ended: either way it is gone.
            let _ = task.await;
        }
        settled
    }
}
