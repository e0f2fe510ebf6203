//! The settlement writer: takes finished calls off the request path and does not forget one before it is durable.

use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use store::instances::Standing;
use store::ledger::{Ask, LedgerLink, Settlement};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::call::{Handed, Verdict};
use crate::lane::BARE;
use crate::live::LiveCalls;

/// Calls that may be open or unsettled at once in one process; admission waits beyond it.
pub(crate) const CAPACITY: usize = 8192;
const BATCH: usize = 128;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The writer of a process.
pub(crate) struct Writer {
    pub(crate) link: LedgerLink,
    pub(crate) standing: Standing,
    pub(crate) live: LiveCalls,
}

impl Writer {
    /// Settles what comes in until `stop` fires, then what is left, those calls included that are still open. It returns
    /// when every permit has been used or given back and everything is durable; give the wait for that a deadline.
    pub(crate) async fn run(mut self, mut inbox: mpsc::Receiver<Handed>, mut stop: oneshot::Receiver<()>) {
        let mut handed = Vec::with_capacity(BATCH);
        let mut open = true;
        loop {
            if open {
                tokio::select! {
                    received = inbox.recv_many(&mut handed, BATCH) => if received == 0 { break },
                    _ = &mut stop => {
                        open = false;
                        inbox.close();
                        continue;
                    }
                }
            } else if inbox.recv_many(&mut handed, BATCH).await == 0 {
                break;
            }
            let mut batch = Vec::with_capacity(handed.len());
            for handed in handed.drain(..) {
                batch.push(decided(handed).await);
            }
            self.write(batch).await;
        }
        self.link.close().await;
    }

    /// Settles a batch and makes it durable, for as long as that takes. Until the flush has returned the batch is kept and
    /// sent again after a failure: a settlement that is there already changes nothing.
    async fn write(&mut self, batch: Vec<Settlement>) {
        let mut batches = vec![batch];
        while let Some(mut batch) = batches.pop() {
            let mut pause = FIRST_PAUSE;
            loop {
                match self.settle_and_flush(&batch).await {
                    Ok(()) => {
                        for settlement in &batch {
                            self.live.forget(&settlement.call);
                        }
                        break;
                    }
                    // Whatever is not the values' fault passes, however long it takes: nothing is dropped for it.
                    Err(error) if !error.is_about_values() => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            calls = batch.len(),
                            "settlements wait for the database"
                        );
                        sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                    Err(error) if batch.len() > 1 => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            calls = batch.len(),
                            "a batch of settlements was refused and is halved"
                        );
                        let second = batch.split_off(batch.len() / 2);
                        batches.extend([second, batch]);
                        break;
                    }
                    Err(error) => {
                        let Some(settlement) = batch.first_mut() else { break };
                        let request_id = settlement.call.ask.request;
                        if settlement.entry.is_bare() && settlement.call.ask.details == BARE {
                            tracing::error!(error = &error as &dyn std::error::Error, %request_id, "a settlement was refused for good and stays open");
                            break;
                        }
                        tracing::warn!(%request_id, "a settlement is written without its texts");
                        settlement.entry = settlement.entry.bare();
                        let ask = Ask { details: BARE.to_owned(), ..(*settlement.call.ask).clone() };
                        settlement.call.ask = Arc::new(ask);
                    }
                }
            }
        }
    }

    async fn settle_and_flush(&mut self, batch: &[Settlement]) -> Result<(), StoreError> {
        self.link.settle(self.standing.id(), batch).await?;
        self.link.flush().await
    }
}

/// A settlement once it is known what its call holds.
async fn decided(handed: Handed) -> Settlement {
    let Handed { mut settlement, verdict } = handed;
    let Some(mut verdict) = verdict else { return settlement };
    let decided = verdict.wait_for(|verdict| !matches!(verdict, Verdict::Pending)).await;
    match decided.as_deref() {
        Ok(Verdict::Admitted(row)) => settlement.call = row.clone(),
        // It holds nothing: all that it is charged is in excess.
        Ok(Verdict::Overruled(_)) => {
            settlement.call.held_tokens = 0;
            settlement.call.held_cost = domain::NanoUsd::ZERO;
        }
        // Its lane has ended without an answer: it is charged as a call whose admission was lost.
        Ok(Verdict::Pending) | Err(_) => {}
    }
    settlement
}
