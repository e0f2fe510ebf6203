//! The ledger of a process.

use std::sync::Arc;
use std::time::Duration;

use domain::InstanceId;
use store::Store;
use store::ledger::{Ask, Denial, Settlement};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::call::OpenCall;
use crate::error::LedgerError;
use crate::lane::{self, Waiting};
use crate::writer;

/// Two statements at once keep one project's load from making every other one wait behind it.
const LANES: usize = 2;
const LANE_CAPACITY: usize = 1024;

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
    lanes: Arc<[mpsc::Sender<Waiting>]>,
    settlements: mpsc::Sender<Settlement>,
}

/// The tasks behind a [`Ledger`], to be joined at shutdown.
pub struct LedgerTasks {
    lanes: Vec<JoinHandle<()>>,
    writer: JoinHandle<()>,
    stop_writer: oneshot::Sender<()>,
}

impl Ledger {
    /// Starts the lanes and the settlement writer of a registered instance. Calls are opened under the id that `instance`
    /// has at that moment: a process that was given up by the others goes on under another.
    #[must_use]
    pub fn start(store: &Store, instance: watch::Receiver<InstanceId>) -> (Self, LedgerTasks) {
        let (settlements, inbox) = mpsc::channel(writer::CAPACITY);
        let (stop_writer, stopped) = oneshot::channel();
        let writer = tokio::spawn(writer::run(store.clone(), inbox, stopped));
        let (senders, lanes) = (0..LANES)
            .map(|_| {
                let (sender, inbox) = mpsc::channel(LANE_CAPACITY);
                (sender, tokio::spawn(lane::run(store.clone(), instance.clone(), inbox)))
            })
            .unzip::<_, _, Vec<_>, Vec<_>>();
        (Self { lanes: senders.into(), settlements }, LedgerTasks { lanes, writer, stop_writer })
    }

    /// Reserves for a call. Dropping the future while it waits is safe: whatever was admitted is settled.
    ///
    /// # Errors
    /// [`LedgerError`]; nothing is held for the caller then.
    pub async fn admit(&self, ask: Ask) -> Result<Outcome, LedgerError> {
        let permit = self.settlements.clone().reserve_owned().await.map_err(|_| LedgerError::ShuttingDown)?;
        let lane = usize::try_from(ask.project.0.unsigned_abs()).unwrap_or(0) % self.lanes.len();
        let lane = self.lanes.get(lane).ok_or(LedgerError::Internal)?;
        let (reply, answer) = oneshot::channel();
        lane.send(Waiting { ask, permit, reply }).await.map_err(|_| LedgerError::ShuttingDown)?;
        answer.await.map_err(|_| LedgerError::ShuttingDown)?
    }
}

impl LedgerTasks {
    /// Settles everything that is open or waiting, within the budget. Call it when no new call can be admitted any more
    /// any more. Returns whether all was settled; what was not stays open in the ledger.
    pub async fn finish(self, budget: Duration) -> bool {
        let _ = self.stop_writer.send(());
        let abort = self.writer.abort_handle();
        let settled = timeout(budget, self.writer).await.is_ok_and(|joined| joined.is_ok());
        abort.abort();
        for lane in self.lanes {
            lane.abort();
            // Aborted or ended: either way it is gone.
            let _ = lane.await;
        }
        settled
    }
}
