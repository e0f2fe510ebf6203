//! Keeping house. Every replica does it; each step may run twice at once and be cut off anywhere.

pub(crate) mod embeddings;
pub(crate) mod folding;
pub(crate) mod removals;
pub(crate) mod rollups;

use std::sync::Arc;
use std::time::Duration;

use domain::DocumentId;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// Between two passes.
const EVERY: Duration = Duration::from_secs(3600);

/// After a pass that failed.
const AGAIN: Duration = Duration::from_secs(60);

/// Rows removed by one statement.
const BATCH: i64 = 5_000;

/// Blobs removed by one statement: each may have hundreds of parts.
const BLOB_BATCH: i64 = 100;

/// Documents looked at by one statement for versions that nobody needs any more.
const WINDOW: i64 = 10_000;

/// Between two statements that remove a lot.
const BREATH: Duration = Duration::from_millis(100);

/// Passes, from now on until it is told to stop.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    loop {
        let pause = match stop.run_until_cancelled(pass(&app)).await {
            None => return,
            Some(Ok(())) => EVERY,
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "housekeeping failed and is tried again in a minute");
                AGAIN
            }
        };
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

async fn pass(app: &App) -> Result<(), StoreError> {
    app.store.ensure_log_days_ahead().await?;
    let sessions = in_batches(BATCH, |limit| app.store.delete_expired_sessions(limit)).await?;
    let attempts = in_batches(BATCH, |limit| app.store.delete_old_login_attempts(limit)).await?;
    let blobs = in_batches(BLOB_BATCH, |limit| app.store.sweep_blobs(limit)).await?;
    let old_versions = remove_old_versions(&app.store).await?;
    tracing::info!(sessions, attempts, blobs, old_versions, "housekeeping is done");
    Ok(())
}

/// Removes batch after batch until one is not full; returns how many rows went.
async fn in_batches<F>(limit: i64, remove: impl Fn(i64) -> F) -> Result<u64, StoreError>
where
    F: Future<Output = Result<u64, StoreError>>,
{
    let mut removed = 0;
    loop {
        let batch = remove(limit).await?;
        removed += batch;
        if batch < limit.unsigned_abs() {
            return Ok(removed);
        }
        tokio::time::sleep(BREATH).await;
    }
}

/// Workers remove what they replace. This is for the ones that died before they had: returns of how many documents
/// something was left.
async fn remove_old_versions(store: &Store) -> Result<usize, StoreError> {
    let (mut after, mut documents) = (DocumentId(0), 0);
    loop {
        let found = store.list_old_versions(after, WINDOW).await?;
        documents += found.documents.len();
        for document in found.documents {
            while store.delete_old_versions(document).await? {
                tokio::time::sleep(BREATH).await;
            }
        }
        match found.looked_at {
            Some(last) => after = last,
            None => return Ok(documents),
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::RoleName;

    use super::*;

    #[tokio::test]
    async fn what_a_worker_left_behind_is_removed_and_what_is_live_is_not() {
        let database = testkit::database().await.unwrap();
        let project = database.insert_project("p", "").await.unwrap();
        let embedding = database.insert_connection("embed", "http://127.0.0.1:1/v1", "demo-embed").await.unwrap();
        let documents = database.insert_document_store(project, embedding, 3).await.unwrap();
        let left = database.insert_document(documents, "left.txt").await.unwrap();
        let waiting = database.insert_document(documents, "waiting.txt").await.unwrap();
        database.leave_old_version(left).await.unwrap();
        let before = database.document_facts(waiting).await.unwrap();
        assert_eq!(database.document_facts(left).await.unwrap().chunks, 1);

        let store = database.store(RoleName::Backend).unwrap();
        assert_eq!(remove_old_versions(&store).await.unwrap(), 1);
        assert_eq!(database.document_facts(left).await.unwrap().chunks, 0);
        assert_eq!(database.document_facts(waiting).await.unwrap(), before);
        assert_eq!(remove_old_versions(&store).await.unwrap(), 0);
    }
}
