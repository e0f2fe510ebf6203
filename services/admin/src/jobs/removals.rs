//! Removing what was deleted, and deleting what has become too old for its store. Every replica does it; each step may
//! run twice at once and be cut off anywhere.

use std::sync::Arc;
use std::time::Duration;

use domain::DocumentId;
use store::removals::Going;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::BREATH;
use crate::app::App;

/// Between two passes, unless something is deleted here.
const EVERY: Duration = Duration::from_secs(60);

/// Documents that one statement deletes, and that are listed at a time.
const BATCH: i64 = 500;

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    aged: u64,
    documents: u64,
    stores: u64,
}

/// Passes, from now on until it is told to stop.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    loop {
        match stop.run_until_cancelled(pass(&app.store)).await {
            None => return,
            Some(Ok(done)) if done == Done::default() => {}
            Some(Ok(Done { aged, documents, stores })) => {
                tracing::info!(aged, documents, stores, "what was deleted is removed");
            }
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "what was deleted cannot be removed now; it is tried again");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = app.deleted.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn pass(store: &Store) -> Result<Done, StoreError> {
    let mut done = Done::default();
    for aging in store.list_stores_to_clear(Going::Aged).await? {
        done.aged += delete_documents(store, aging, Going::Aged).await?;
    }
    let stores = store.list_stores_to_clear(Going::All).await?;
    for deleted in &stores {
        delete_documents(store, *deleted, Going::All).await?;
    }
    done.documents = remove_documents(store).await?;
    for deleted in stores {
        done.stores += u64::from(store.remove_store(deleted).await?);
    }
    Ok(done)
}

async fn delete_documents(store: &Store, of: domain::StoreId, going: Going) -> Result<u64, StoreError> {
    let mut deleted = 0;
    loop {
        match store.delete_documents_of(of, going, BATCH).await? {
            0 => return Ok(deleted),
            more => deleted += more,
        }
        tokio::time::sleep(BREATH).await;
    }
}

async fn remove_documents(store: &Store) -> Result<u64, StoreError> {
    let mut removed = 0;
    loop {
        let documents = store.list_deleted_documents(BATCH).await?;
        if documents.is_empty() {
            return Ok(removed);
        }
        for document in documents {
            remove(store, document).await?;
            removed += 1;
        }
    }
}

/// A large document is thousands of rows in several tables: none of them may take one statement too long.
async fn remove(store: &Store, document: DocumentId) -> Result<(), StoreError> {
    while store.delete_old_versions(document).await? {
        tokio::task::yield_now().await;
    }
    store.remove_document(document).await
}
