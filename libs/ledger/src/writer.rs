//! The settlement writer: takes finished calls off the request path and does not forget one before it is durable.

use std::time::Duration;

use store::ledger::{Entry, Settlement};
use store::{Store, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// Calls that may be open or unsettled at once in one process; admission waits beyond it.
pub(crate) const CAPACITY: usize = 8192;
const BATCH: usize = 128;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Settles what comes in until `stop` fires, then what is left, those calls included that are still open. It returns
/// when every permit has been used or given back and everything is durable; give the wait for that a deadline.
pub(crate) async fn run(store: Store, mut inbox: mpsc::Receiver<Settlement>, mut stop: oneshot::Receiver<()>) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut open = true;
    loop {
        if open {
            tokio::select! {
                received = inbox.recv_many(&mut batch, BATCH) => if received == 0 { return },
                _ = &mut stop => {
                    open = false;
                    inbox.close();
                    continue;
                }
            }
        } else if inbox.recv_many(&mut batch, BATCH).await == 0 {
            return;
        }
        write(&store, &mut batch).await;
    }
}

/// Settles a batch and makes it durable, for as long as that takes. Until the flush has returned the batch is kept and
/// sent again after a failure: a settlement that is there already changes nothing.
async fn write(store: &Store, batch: &mut Vec<Settlement>) {
    let mut pause = FIRST_PAUSE;
    loop {
        match settle_and_flush(store, batch).await {
            Ok(()) => {
                batch.clear();
                return;
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
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    calls = batch.len(),
                    "a batch of settlements was refused and is settled one by one"
                );
                for settlement in std::mem::take(batch) {
                    write_alone(store, settlement).await;
                }
                return;
            }
        }
    }
}

/// Settles one call that made a batch fail; if its texts are the reason, without them.
async fn write_alone(store: &Store, settlement: Settlement) {
    let mut attempt = vec![settlement];
    let mut pause = FIRST_PAUSE;
    let mut bare = false;
    loop {
        match settle_and_flush(store, &attempt).await {
            Ok(()) => return,
            Err(error) if !error.is_about_values() => {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(_) if !bare => {
                bare = true;
                for settlement in &mut attempt {
                    settlement.entry = without_texts(&settlement.entry);
                }
            }
            Err(error) => {
                let request = attempt.first().map(|settlement| settlement.request.to_string());
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    request_id = request,
                    "a settlement was refused for good; its call stays open in the ledger"
                );
                return;
            }
        }
    }
}

async fn settle_and_flush(store: &Store, batch: &[Settlement]) -> Result<(), StoreError> {
    store.settle(batch).await?;
    store.flush().await
}

fn without_texts(entry: &Entry) -> Entry {
    Entry {
        operation: None,
        route: None,
        model: None,
        provider_type: None,
        error_code: None,
        tags: None,
        ..entry.clone()
    }
}
