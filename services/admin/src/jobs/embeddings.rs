//! Removing the vectors that a store has left for those of another model. Every replica does it; each takes what no other
//! is at.

use std::sync::Arc;
use std::time::Duration;

use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::BREATH;
use crate::app::App;

/// Between two passes.
const EVERY: Duration = Duration::from_secs(60);

/// How long vectors stay that nobody begins a search with any more: far longer than a search takes.
const KEPT: Duration = Duration::from_secs(600);

/// Passes, from now on until it is told to stop.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    loop {
        match stop.run_until_cancelled(pass(&app.store, KEPT)).await {
            None => return,
            Some(Ok(0)) => {}
            Some(Ok(vectors)) => tracing::info!(vectors, "vectors of models that stores have left are removed"),
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "vectors that nobody uses cannot be removed now; it is tried again");
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
            return;
        }
    }
}

async fn pass(store: &Store, kept: Duration) -> Result<u64, StoreError> {
    let mut vectors = 0;
    while let Some(removed) = store.remove_retired_embeddings(kept).await? {
        vectors += removed;
        tokio::time::sleep(BREATH).await;
    }
    Ok(vectors)
}
