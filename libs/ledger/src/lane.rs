//! Lanes of admission: while a statement is in flight, later arrivals gather for the next one.

use domain::InstanceId;
use store::ledger::{Admission, Ask, Settlement};
use store::{Store, StoreError};
use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::{mpsc, oneshot, watch};

use crate::call::OpenCall;
use crate::error::LedgerError;
use crate::service::Outcome;

const BATCH: usize = 64;

/// An ask on its way to the database, with the permit its settlement will need.
pub(crate) struct Waiting {
    pub(crate) ask: Ask,
    pub(crate) permit: OwnedPermit<Settlement>,
    pub(crate) reply: oneshot::Sender<Result<Outcome, LedgerError>>,
}

/// Admits what comes in, batch by batch, until the ledger is dropped.
///
/// The statement runs in this task and not in the caller's future: a caller that is dropped while it waits leaves an
/// answer that nobody takes, and the [`OpenCall`] in it settles itself.
pub(crate) async fn run(store: Store, instance: watch::Receiver<InstanceId>, mut inbox: mpsc::Receiver<Waiting>) {
    let mut batch = Vec::with_capacity(BATCH);
    while inbox.recv_many(&mut batch, BATCH).await > 0 {
        // Whoever has left already takes nothing.
        batch.retain(|waiting| !waiting.reply.is_closed());
        let instance = *instance.borrow();
        admit(&store, instance, std::mem::take(&mut batch)).await;
    }
}

async fn admit(store: &Store, instance: InstanceId, batch: Vec<Waiting>) {
    let asks: Vec<Ask> = batch.iter().map(|waiting| waiting.ask.clone()).collect();
    match store.admit(instance, &asks).await {
        Ok(admissions) => {
            for (waiting, admission) in batch.into_iter().zip(admissions) {
                answer(waiting, admission);
            }
        }
        Err(error) if error.is_transient() || batch.len() == 1 => fail(batch, &error),
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                calls = batch.len(),
                "a batch of admissions was refused and is admitted one by one"
            );
            for waiting in batch {
                match store.admit(instance, std::slice::from_ref(&waiting.ask)).await {
                    Ok(admissions) => {
                        if let Some(admission) = admissions.into_iter().next() {
                            answer(waiting, admission);
                        }
                    }
                    Err(error) => fail(vec![waiting], &error),
                }
            }
        }
    }
}

fn answer(waiting: Waiting, admission: Admission) {
    let Waiting { ask, permit, reply } = waiting;
    let outcome = match admission {
        Admission::Admitted { output_tokens, headroom, .. } => {
            Outcome::Open(Box::new(OpenCall::new(permit, &ask, output_tokens, headroom)))
        }
        Admission::Denied(denial) => Outcome::Denied(denial),
        Admission::Refused { code } => Outcome::Refused { code },
    };
    // If the caller has left, the outcome comes back and is dropped here, which settles an open call.
    let _ = reply.send(Ok(outcome));
}

fn fail(batch: Vec<Waiting>, error: &StoreError) {
    tracing::warn!(error = error as &dyn std::error::Error, calls = batch.len(), "admission failed");
    for waiting in batch {
        let _ = waiting.reply.send(Err(LedgerError::from(error)));
    }
}
