//! Documents and stores on their way out.
//!
//! What is deleted is gone for everybody in one short statement: nobody finds it, lists it, counts it or ingests it any
//! more, and its name, its key and its bytes can be used again at once. Its rows follow in batches, removed by whichever
//! admin process gets to them, in any order and as often as it takes.

use domain::{DocumentId, StoreId};
use serde_json::json;

use crate::audit::{Actor, AuditEntry};
use crate::bounded::Transaction;
use crate::{Reach, Store, StoreError};

/// What documents of a store go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// All: the store itself goes.
    All,
    /// Those older than the store keeps them.
    Aged,
}

impl Store {
    /// Deletes a document of a store within reach. A worker that is at it loses its claim and writes nothing more.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn delete_document(&self, reach: Reach, id: DocumentId, entry: &AuditEntry) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        // The store before the document, as uploads lock them.
        let store = sqlx::query_scalar!(
            "SELECT s.id FROM documents d JOIN document_stores s ON s.id = d.store_id
              WHERE d.id = $1 AND d.deleted_at IS NULL AND s.deleted_at IS NULL AND can_reach_project(s.project_id, $2)
                FOR NO KEY UPDATE OF s",
            id.0,
            reach.member()
        )
        .fetch_optional(&mut transaction)
        .await?;
        let deleted = match store {
            Some(store) => mark_deleted(&mut transaction, StoreId(store), &[id.0]).await?,
            None => 0,
        };
        if deleted == 0 {
            transaction.rollback().await?;
            return Err(StoreError::NotFound);
        }
        sqlx::query_scalar!("SELECT record_audit('document', $1, $2)", id.0, entry.to_json())
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Deletes a store of a project within reach with all its documents. Projects that searched it search nothing then. An
    /// empty one is gone altogether.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn delete_document_store(&self, reach: Reach, id: StoreId, entry: &AuditEntry) -> Result<(), StoreError> {
        match self.delete_empty_store(reach, id, entry).await {
            // It has documents, or somebody is uploading its first.
            Ok(false) | Err(StoreError::Referenced { .. }) => self.retire_store(reach, id, entry).await,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn delete_empty_store(&self, reach: Reach, id: StoreId, entry: &AuditEntry) -> Result<bool, StoreError> {
        let deleted = sqlx::query_scalar!(
            "WITH deleted AS (
                 DELETE FROM document_stores
                  WHERE id = $1 AND deleted_at IS NULL AND can_reach_project(project_id, $2)
                    AND NOT EXISTS (SELECT FROM documents WHERE store_id = $1)
                 RETURNING id)
             SELECT record_change('store', id, $3) FROM deleted",
            id.0,
            reach.member(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(deleted.is_some())
    }

    async fn retire_store(&self, reach: Reach, id: StoreId, entry: &AuditEntry) -> Result<(), StoreError> {
        let deleted = sqlx::query_scalar!(
            "WITH deleted AS (
                 UPDATE document_stores
                    -- Another store may have its name now, and none can have this one.
                    SET deleted_at = clock_timestamp(), name = 'deleted ' || gen_random_uuid(), revision = revision + 1,
                        content_revision = content_revision + 1, updated_at = clock_timestamp()
                  WHERE id = $1 AND deleted_at IS NULL AND can_reach_project(project_id, $2) RETURNING id),
             grants AS (DELETE FROM project_stores g USING deleted WHERE g.store_id = deleted.id),
             switches AS (DELETE FROM embedding_switches w USING deleted WHERE w.store_id = deleted.id),
             searchers AS (
                 UPDATE projects p SET store_id = NULL FROM deleted WHERE p.store_id = deleted.id)
             SELECT record_change('store', id, $3) FROM deleted",
            id.0,
            reach.member(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        deleted.map(|_| ()).ok_or(StoreError::NotFound)
    }

    /// Stores that have been deleted, or keep documents for a time only, and have documents to go. By id.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_stores_to_clear(&self, going: Going) -> Result<Vec<StoreId>, StoreError> {
        let stores = sqlx::query_scalar!(
            "SELECT s.id FROM document_stores s
              WHERE CASE WHEN $1 THEN s.deleted_at IS NOT NULL
                         ELSE s.deleted_at IS NULL AND s.max_age_days > 0 AND EXISTS (
                             SELECT FROM documents d
                              WHERE d.store_id = s.id AND d.deleted_at IS NULL
                                AND coalesce(d.replaced_at, d.created_at)
                                    < clock_timestamp() - s.max_age_days * interval '1 day') END
              ORDER BY s.id",
            going == Going::All
        )
        .fetch_all(self.pool())
        .await?;
        Ok(stores.into_iter().map(StoreId).collect())
    }

    /// Deletes up to `limit` documents of such a store, as [`Store::delete_document`] does. What goes by its age is told
    /// in the audit log. Returns how many.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delete_documents_of(&self, store: StoreId, going: Going, limit: i64) -> Result<u64, StoreError> {
        let mut transaction = self.begin().await?;
        // Locked in a statement of its own, as uploads lock it: the next one sees every document that is there.
        let there = sqlx::query_scalar!(
            "SELECT id FROM document_stores
              WHERE id = $1 AND (deleted_at IS NOT NULL) = $2 FOR NO KEY UPDATE",
            store.0,
            going == Going::All
        )
        .fetch_optional(&mut transaction)
        .await?;
        if there.is_none() {
            transaction.rollback().await?;
            return Ok(0);
        }
        let documents = sqlx::query_scalar!(
            "SELECT d.id FROM documents d JOIN document_stores s ON s.id = d.store_id
              WHERE d.store_id = $1 AND d.deleted_at IS NULL
                AND ($2 OR s.max_age_days > 0 AND coalesce(d.replaced_at, d.created_at)
                                                  < clock_timestamp() - s.max_age_days * interval '1 day')
              ORDER BY d.id LIMIT $3",
            store.0,
            going == Going::All,
            limit
        )
        .fetch_all(&mut transaction)
        .await?;
        let deleted = mark_deleted(&mut transaction, store, &documents).await?;
        if deleted > 0 && going == Going::Aged {
            let entry =
                AuditEntry::new(Actor::named("retention"), "document.expire").with(json!({ "documents": deleted }));
            sqlx::query_scalar!("SELECT record_audit('store', $1, $2)", store.0, entry.to_json())
                .fetch_one(&mut transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(deleted)
    }

    /// Documents that have been deleted and have a row yet, at most `limit`.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_deleted_documents(&self, limit: i64) -> Result<Vec<DocumentId>, StoreError> {
        let documents =
            sqlx::query_scalar!("SELECT id FROM documents WHERE deleted_at IS NOT NULL ORDER BY id LIMIT $1", limit)
                .fetch_all(self.pool())
                .await?;
        Ok(documents.into_iter().map(DocumentId).collect())
    }

    /// Removes the row of a deleted document of which nothing else is left; see [`Store::delete_old_versions`].
    ///
    /// # Errors
    /// As for any statement.
    pub async fn remove_document(&self, document: DocumentId) -> Result<(), StoreError> {
        sqlx::query!("DELETE FROM documents WHERE id = $1 AND deleted_at IS NOT NULL", document.0)
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Removes the row of a deleted store that has no documents any more. Returns whether it is gone.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn remove_store(&self, store: StoreId) -> Result<bool, StoreError> {
        let result = sqlx::query!(
            "DELETE FROM document_stores s
              WHERE s.id = $1 AND s.deleted_at IS NOT NULL
                AND NOT EXISTS (SELECT FROM documents d WHERE d.store_id = s.id)",
            store.0
        )
        .execute(self.pool())
        .await?;
        Ok(result.rows_affected() == 1)
    }
}

/// Marks documents of a store as deleted, lets go of their bytes, and has searches see another store. Whoever calls holds
/// the store's row. Returns how many were not deleted before.
async fn mark_deleted(transaction: &mut Transaction, store: StoreId, documents: &[i64]) -> Result<u64, StoreError> {
    let deleted = sqlx::query_scalar!(
        r#"WITH deleted AS (
               UPDATE documents
                  SET deleted_at = clock_timestamp(), status = 'failed', live_version = NULL,
                      content_version = content_version + 1, external_key = NULL, claimed_by = NULL,
                      claim_token = claim_token + 1, claimed_at = NULL, lease_until = NULL, stage = NULL,
                      updated_at = clock_timestamp()
                WHERE id = ANY ($2) AND store_id = $1 AND deleted_at IS NULL
               RETURNING blob_id),
           released AS (
               UPDATE blobs SET touched_at = clock_timestamp() WHERE id IN (SELECT blob_id FROM deleted)),
           changed AS (
               UPDATE document_stores SET content_revision = content_revision + 1
                WHERE id = $1 AND EXISTS (SELECT FROM deleted))
           SELECT count(*) AS "count!" FROM deleted"#,
        store.0,
        documents
    )
    .fetch_one(transaction)
    .await?;
    Ok(deleted.unsigned_abs())
}
