//! The bytes of uploads, in parts.

use domain::BlobId;

use crate::{Store, StoreError};

/// The most bytes of a part.
pub const PART_BYTES: usize = 256 * 1024;

impl Store {
    /// Begins an upload: a blob without a name, which only the process that made it knows.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn begin_blob(&self) -> Result<BlobId, StoreError> {
        let id = sqlx::query_scalar!("INSERT INTO blobs DEFAULT VALUES RETURNING id").fetch_one(self.pool()).await?;
        Ok(BlobId(id))
    }

    /// Adds the next part, of at most [`PART_BYTES`].
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the upload was given up meanwhile.
    pub async fn append_blob_part(&self, blob: BlobId, ordinal: i32, bytes: &[u8]) -> Result<(), StoreError> {
        let added = sqlx::query_scalar!(
            "WITH blob AS (
                 UPDATE blobs SET size = size + octet_length($3::bytea), touched_at = clock_timestamp()
                  WHERE id = $1 AND sha256 IS NULL
                 RETURNING id)
             INSERT INTO blob_parts (blob_id, ordinal, bytes) SELECT id, $2, $3::bytea FROM blob RETURNING blob_id",
            blob.0,
            ordinal,
            bytes
        )
        .fetch_optional(self.pool())
        .await?;
        added.map(|_| ()).ok_or(StoreError::NotFound)
    }

    /// Removes an upload that came to nothing. A blob that has been named stays.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn discard_blob(&self, blob: BlobId) -> Result<(), StoreError> {
        sqlx::query!("DELETE FROM blobs WHERE id = $1 AND sha256 IS NULL", blob.0).execute(self.pool()).await?;
        Ok(())
    }

    /// Removes up to `limit` blobs that no document refers to and that nobody has touched for an hour: uploads of
    /// processes that died, and bytes of documents that are gone. Returns how many.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn sweep_blobs(&self, limit: i64) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "DELETE FROM blobs WHERE id IN (
                 SELECT b.id FROM blobs b
                  WHERE b.touched_at < clock_timestamp() - interval '1 hour'
                    AND NOT EXISTS (SELECT FROM documents d WHERE d.blob_id = b.id)
                  LIMIT $1 FOR UPDATE SKIP LOCKED)",
            limit
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }
}
