//! The end of an upload: one transaction that decides what becomes of the bytes.

use domain::{BlobId, DocumentId, StoreId};
use serde_json::Value;

use crate::audit::AuditEntry;
use crate::bounded::Transaction;
use crate::pool::Topic;
use crate::{Reach, Store, StoreError};

/// How often the transaction is tried when somebody else is at the same bytes or the same document at the same moment.
const TRIES: usize = 3;

/// A file whose bytes are stored and hashed.
#[derive(Clone, Debug)]
pub struct Upload {
    /// The store it goes to.
    pub store: StoreId,
    /// Its bytes, not named yet.
    pub blob: BlobId,
    /// Their hash.
    pub sha256: [u8; 32],
    /// How many they are.
    pub size: i64,
    /// The name it was uploaded under.
    pub file_name: String,
    /// What it was found to be.
    pub media_type: String,
    /// The uploader's own key: a document of the store that has it is replaced.
    pub external_key: Option<String>,
    /// What the uploader says about it: an object.
    pub metadata: Value,
    /// Whether bytes that the store has already make another document.
    pub allow_duplicate: bool,
}

/// What became of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadOutcome {
    /// It is a document now and waits.
    Created(DocumentId),
    /// It is the next content of the document with its external key and waits; the old content stays searchable.
    Replaced(DocumentId),
    /// The store has these bytes already, as this document, which has the external key now if it had none. Nothing else
    /// was kept.
    Duplicate(DocumentId),
    /// The store may not hold that many documents. Nothing was kept.
    TooManyDocuments {
        /// How many it may.
        limit: i64,
    },
    /// The store may not hold that many bytes. Nothing was kept.
    TooManyBytes {
        /// How many it may.
        limit: i64,
    },
}

impl Store {
    /// Ends an upload: decides duplicate, replacement and quota, names the blob or deletes it, and tells the workers. Of
    /// uploads to one store, one ends at a time, so the same file sent twice at once is one document and quotas hold.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the store is gone or not within reach, or the blob was swept; the blob is still
    /// unnamed then.
    pub async fn finish_upload(
        &self,
        reach: Reach,
        upload: &Upload,
        entry: &AuditEntry,
    ) -> Result<UploadOutcome, StoreError> {
        let mut tries = 1;
        loop {
            match self.try_finish_upload(reach, upload, entry).await {
                // An upload of the same bytes to another store was faster; theirs are there to be used now.
                Err(StoreError::AlreadyExists { constraint }) if constraint == "blobs_sha256_key" && tries < TRIES => {
                    tries += 1;
                }
                // A worker that ends its work on the document locks it and the store the other way round.
                Err(StoreError::Conflict) if tries < TRIES => tries += 1,
                result => return result,
            }
        }
    }

    async fn try_finish_upload(
        &self,
        reach: Reach,
        upload: &Upload,
        entry: &AuditEntry,
    ) -> Result<UploadOutcome, StoreError> {
        let mut transaction = self.begin().await?;
        let quota = lock_store(&mut transaction, reach, upload.store).await?;
        lock_blobs(&mut transaction, upload).await?;
        let blob = name_blob(&mut transaction, upload).await?;
        let held = find_held(&mut transaction, upload, blob).await?;
        let mut adopted = false;
        let outcome = match (held.keyed, held.same) {
            (Some(keyed), _) if held.keyed_is_same => UploadOutcome::Duplicate(keyed),
            (Some(keyed), _) => match quota.refuses(&held, 0, upload.size - held.keyed_size) {
                Some(refusal) => refusal,
                None => replace(&mut transaction, keyed, upload, blob).await?,
            },
            // A document has one key: with another key, or beside one that has another, the same bytes are another document.
            (None, Some(same))
                if !upload.allow_duplicate && (upload.external_key.is_none() || held.same_is_keyless) =>
            {
                if upload.external_key.is_some() {
                    adopt(&mut transaction, same, upload).await?;
                    adopted = true;
                }
                UploadOutcome::Duplicate(same)
            }
            (None, _) => match quota.refuses(&held, 1, upload.size) {
                Some(refusal) => refusal,
                None => create(&mut transaction, upload, blob).await?,
            },
        };
        match outcome {
            UploadOutcome::Duplicate(document) if adopted => {
                sqlx::query_scalar!("SELECT record_audit('document', $1, $2)", document.0, entry.to_json())
                    .fetch_one(&mut transaction)
                    .await?;
                transaction.commit().await?;
            }
            UploadOutcome::Created(document) | UploadOutcome::Replaced(document) => {
                sqlx::query!(
                    "SELECT record_audit('document', $1, $2) AS entry, pg_notify(notification_channel($3), '')",
                    document.0,
                    entry.to_json(),
                    Topic::Documents.as_str()
                )
                .fetch_one(&mut transaction)
                .await?;
                transaction.commit().await?;
            }
            UploadOutcome::Duplicate(_)
            | UploadOutcome::TooManyDocuments { .. }
            | UploadOutcome::TooManyBytes { .. } => {
                transaction.rollback().await?;
                self.discard_blob(upload.blob).await?;
            }
        }
        Ok(outcome)
    }
}

struct Quota {
    max_documents: i64,
    max_bytes: i64,
}

impl Quota {
    /// Whether that much more is too much. A store over its quota may still shrink.
    fn refuses(&self, held: &Held, documents: i64, bytes: i64) -> Option<UploadOutcome> {
        if self.max_documents > 0 && documents > 0 && held.documents + documents > self.max_documents {
            return Some(UploadOutcome::TooManyDocuments { limit: self.max_documents });
        }
        if self.max_bytes > 0 && bytes > 0 && held.bytes + bytes > self.max_bytes {
            return Some(UploadOutcome::TooManyBytes { limit: self.max_bytes });
        }
        None
    }
}

/// Waits until no other upload to the store is ending, and keeps the store from being deleted.
async fn lock_store(transaction: &mut Transaction, reach: Reach, store: StoreId) -> Result<Quota, StoreError> {
    sqlx::query_as!(
        Quota,
        "SELECT max_documents, max_bytes FROM document_stores
          WHERE id = $1 AND deleted_at IS NULL AND can_reach_project(project_id, $2)
            FOR NO KEY UPDATE",
        store.0,
        reach.member()
    )
    .fetch_optional(transaction)
    .await?
    .ok_or(StoreError::NotFound)
}

/// Locks the blobs that the upload may touch beside its own, those with its bytes and with the content that it replaces,
/// by id: two stores that swap contents at once wait for each other in one direction only.
async fn lock_blobs(transaction: &mut Transaction, upload: &Upload) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT id FROM blobs
          WHERE sha256 = $1
             OR id IN (SELECT blob_id FROM documents WHERE store_id = $2 AND external_key = $3)
          ORDER BY id FOR UPDATE",
        upload.sha256.as_slice(),
        upload.store.0,
        upload.external_key
    )
    .fetch_all(transaction)
    .await?;
    Ok(())
}

/// The blob with these bytes: the one that has them already, in whatever store, or else the one just uploaded.
async fn name_blob(transaction: &mut Transaction, upload: &Upload) -> Result<i64, StoreError> {
    // Touched, so that a sweep that is looking at it lets it be.
    let known = sqlx::query_scalar!(
        "UPDATE blobs SET touched_at = clock_timestamp() WHERE sha256 = $1 RETURNING id",
        upload.sha256.as_slice()
    )
    .fetch_optional(&mut *transaction)
    .await?;
    if let Some(known) = known {
        sqlx::query!("DELETE FROM blobs WHERE id = $1 AND sha256 IS NULL", upload.blob.0)
            .execute(&mut *transaction)
            .await?;
        return Ok(known);
    }
    sqlx::query_scalar!(
        "UPDATE blobs SET sha256 = $2, touched_at = clock_timestamp()
          WHERE id = $1 AND sha256 IS NULL AND size = $3
         RETURNING id",
        upload.blob.0,
        upload.sha256.as_slice(),
        upload.size
    )
    .fetch_optional(&mut *transaction)
    .await?
    .ok_or(StoreError::NotFound)
}

/// What the store holds, as far as the decision needs it.
struct Held {
    documents: i64,
    bytes: i64,
    /// Has the same bytes; one without a key if there is one.
    same: Option<DocumentId>,
    same_is_keyless: bool,
    keyed: Option<DocumentId>,
    keyed_size: i64,
    keyed_is_same: bool,
}

async fn find_held(transaction: &mut Transaction, upload: &Upload, blob: i64) -> Result<Held, StoreError> {
    let row = sqlx::query!(
        r#"SELECT held.documents AS "documents!", held.bytes AS "bytes!",
                  same.id AS "same?", same.external_key IS NULL AS "same_is_keyless!",
                  keyed.id AS "keyed?", keyed.size AS "keyed_size?", keyed.blob_id AS "keyed_blob?"
             FROM (SELECT count(*) AS documents, coalesce(sum(size), 0)::bigint AS bytes
                     FROM documents WHERE store_id = $1 AND deleted_at IS NULL) held
                  LEFT JOIN LATERAL (
                      SELECT d.id, d.external_key FROM documents d
                       WHERE d.store_id = $1 AND d.blob_id = $2 AND d.deleted_at IS NULL
                       ORDER BY d.external_key IS NOT NULL, d.id LIMIT 1) same ON true
                  LEFT JOIN documents keyed ON keyed.store_id = $1 AND keyed.external_key = $3"#,
        upload.store.0,
        blob,
        upload.external_key
    )
    .fetch_one(transaction)
    .await?;
    Ok(Held {
        documents: row.documents,
        bytes: row.bytes,
        same: row.same.map(DocumentId),
        same_is_keyless: row.same_is_keyless,
        keyed: row.keyed.map(DocumentId),
        keyed_size: row.keyed_size.unwrap_or_default(),
        keyed_is_same: row.keyed_blob == Some(blob),
    })
}

async fn create(transaction: &mut Transaction, upload: &Upload, blob: i64) -> Result<UploadOutcome, StoreError> {
    let id = sqlx::query_scalar!(
        "INSERT INTO documents (store_id, blob_id, size, file_name, media_type, external_key, metadata)
         VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id",
        upload.store.0,
        blob,
        upload.size,
        upload.file_name,
        upload.media_type,
        upload.external_key,
        upload.metadata
    )
    .fetch_one(transaction)
    .await?;
    Ok(UploadOutcome::Created(DocumentId(id)))
}

/// Gives a document without a key the one of the upload, so that what comes next under it replaces the document.
async fn adopt(transaction: &mut Transaction, document: DocumentId, upload: &Upload) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE documents SET external_key = $2, updated_at = clock_timestamp() WHERE id = $1",
        document.0,
        upload.external_key
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// The next content of a document. A worker that is at the old one loses its claim.
async fn replace(
    transaction: &mut Transaction,
    document: DocumentId,
    upload: &Upload,
    blob: i64,
) -> Result<UploadOutcome, StoreError> {
    // The old bytes may still be read for a while by whoever has begun to.
    sqlx::query!(
        "UPDATE blobs SET touched_at = clock_timestamp() WHERE id = (SELECT blob_id FROM documents WHERE id = $1)",
        document.0
    )
    .execute(&mut *transaction)
    .await?;
    sqlx::query!(
        "UPDATE documents
            SET blob_id = $2, size = $3, file_name = $4, media_type = $5, metadata = $6,
                content_version = content_version + 1, status = 'pending', run_at = clock_timestamp(), claimed_by = NULL,
                claim_token = claim_token + 1, claimed_at = NULL, lease_until = NULL, attempts = 0, parser_deaths = 0,
                retries = 0, retrying_since = NULL, stage = NULL, progress_done = 0, progress_total = 0,
                error_code = NULL, error_text = NULL, priority = 5, replaced_at = clock_timestamp(),
                updated_at = clock_timestamp()
          WHERE id = $1",
        document.0,
        blob,
        upload.size,
        upload.file_name,
        upload.media_type,
        upload.metadata
    )
    .execute(&mut *transaction)
    .await?;
    Ok(UploadOutcome::Replaced(document))
}
