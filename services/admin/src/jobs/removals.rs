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

#[cfg(test)]
mod tests {
    use testkit::RoleName;

    use super::*;

    #[tokio::test]
    async fn documents_older_than_their_store_keeps_them_go_and_new_content_makes_a_document_young() {
        let database = testkit::database().await.unwrap();
        let project = database.insert_project("p", "").await.unwrap();
        let embedding = database.insert_connection("embed", "http://127.0.0.1:1/v1", "demo-embed").await.unwrap();
        let documents = database.insert_document_store(project, embedding, 3).await.unwrap();
        let mut made = Vec::new();
        for name in ["old.txt", "replaced.txt", "new.txt"] {
            made.push(database.insert_document(documents, name).await.unwrap());
        }
        database.leave_old_version(made[0]).await.unwrap();
        let pool = database.superuser_pool().await.unwrap();
        sqlx::query(
            "UPDATE documents SET created_at = now() - interval '31 days',
                                  replaced_at = CASE file_name WHEN 'replaced.txt' THEN now() END
              WHERE file_name <> 'new.txt'",
        )
        .execute(&pool)
        .await
        .unwrap();
        let stores = [(); 3].map(|()| database.store(RoleName::Backend).unwrap());
        assert_eq!(pass(&stores[0]).await.unwrap(), Done::default(), "it keeps them for ever");
        sqlx::query("UPDATE document_stores SET max_age_days = 30").execute(&pool).await.unwrap();
        let passes = futures::future::try_join_all(stores.iter().map(pass)).await.unwrap();
        assert_eq!(passes.iter().map(|done| done.aged).sum::<u64>(), 1, "{passes:?}");
        let left: Vec<i64> = sqlx::query_scalar("SELECT id FROM documents ORDER BY id").fetch_all(&pool).await.unwrap();
        assert_eq!(left, [made[1].0, made[2].0]);
        let (chunks, told): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM chunks),
                    (SELECT count(*) FROM audit_logs WHERE action = 'document.expire' AND details = '{\"documents\": 1}')",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        assert_eq!((chunks, told), (0, 1));
    }

    #[tokio::test]
    async fn a_deleted_store_is_removed_by_whoever_gets_to_it_first() {
        let database = testkit::database().await.unwrap();
        let project = database.insert_project("p", "").await.unwrap();
        let embedding = database.insert_connection("embed", "http://127.0.0.1:1/v1", "demo-embed").await.unwrap();
        let documents = database.insert_document_store(project, embedding, 3).await.unwrap();
        let first = database.insert_document(documents, "a.txt").await.unwrap();
        database.leave_old_version(first).await.unwrap();
        database.copy_document(first, &[documents], 1_200, "pending").await.unwrap();
        let stores = [(); 3].map(|()| database.store(RoleName::Backend).unwrap());
        let entry = store::audit::AuditEntry::new(store::audit::Actor::named("test"), "rag_store.delete");
        stores[0].delete_document_store(store::Reach::All, documents, &entry).await.unwrap();
        let passes = futures::future::try_join_all(stores.iter().map(pass)).await.unwrap();
        assert_eq!(passes.iter().map(|done| done.stores).sum::<u64>(), 1, "{passes:?}");
        let pool = database.superuser_pool().await.unwrap();
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM documents) + (SELECT count(*) FROM chunks) + (SELECT count(*) FROM document_stores)",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        assert_eq!(left, 0);
    }
}
