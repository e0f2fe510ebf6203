//! One file: from the form into the database, part by part, while it is hashed.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use config::Size;
use domain::BlobId;
use sha2::{Digest, Sha256};
use store::blobs::PART_BYTES;
use tokio::time::timeout;

use super::form::File;
use crate::app::App;
use crate::error::ApiError;

/// How long the removal of an upload that came to nothing may take; the sweep does what is left.
const REMOVAL: Duration = Duration::from_secs(10);

/// The bytes of a file, stored under no name yet. Dropped like this they are removed.
pub(super) struct Received {
    pub(super) sha256: [u8; 32],
    pub(super) size: i64,
    pub(super) media_type: &'static str,
    pub(super) bytes: Unnamed,
}

/// A blob that nobody refers to yet. Unless it is told to stay it is removed when it is dropped, which is also what
/// happens when the client goes away.
pub(super) struct Unnamed {
    app: Arc<App>,
    pub(super) blob: BlobId,
    decided: bool,
}

/// Stores a file. What it is must be clear from its first bytes, before any is stored; at most one part of it is in
/// memory.
pub(super) async fn receive(app: &Arc<App>, file: &mut File<'_>, room: u64) -> Result<Received, ApiError> {
    let mut buffer = BytesMut::new();
    let mut ended = false;
    while buffer.len() < extract::HEAD_BYTES && !ended {
        match file.chunk().await? {
            Some(chunk) => buffer.extend_from_slice(&chunk),
            None => ended = true,
        }
    }
    let format = extract::detect(&file.name, file.declared_type.as_deref(), &buffer).map_err(ApiError::File)?;
    let bytes = Unnamed::begin(app).await?;
    match store_parts(app, bytes.blob, file, buffer, room).await {
        Ok((sha256, size)) => Ok(Received { sha256, size, media_type: format.media_type(), bytes }),
        Err(error) => {
            // Waited for, so that whoever reads the answer finds nothing left.
            bytes.remove().await;
            Err(error)
        }
    }
}

async fn store_parts(
    app: &App,
    blob: BlobId,
    file: &mut File<'_>,
    mut buffer: BytesMut,
    room: u64,
) -> Result<([u8; 32], i64), ApiError> {
    let (mut hash, mut size, mut ordinal) = (Sha256::new(), 0_u64, 0_i32);
    let mut ended = false;
    while !ended || !buffer.is_empty() {
        while buffer.len() < PART_BYTES && !ended {
            match file.chunk().await? {
                Some(chunk) => buffer.extend_from_slice(&chunk),
                None => ended = true,
            }
        }
        let part = buffer.split_to(buffer.len().min(PART_BYTES)).freeze();
        if part.is_empty() {
            break;
        }
        size += part.len() as u64;
        if size > room {
            return Err(too_large(app.max_upload));
        }
        hash.update(&part);
        app.store.append_blob_part(blob, ordinal, &part).await?;
        ordinal += 1;
    }
    Ok((hash.finalize().into(), i64::try_from(size).map_err(ApiError::internal)?))
}

/// The answer to a file, or a request, that is larger than it may be.
pub(super) fn too_large(limit: Size) -> ApiError {
    ApiError::TooLarge(format!(
        "the upload is larger than the limit of {limit} (MAX_UPLOAD_MB); send several files in several requests"
    ))
}

impl Unnamed {
    /// Makes the blob. In a task of its own: a client that goes away right now must not leave a row that nobody knows.
    async fn begin(app: &Arc<App>) -> Result<Self, ApiError> {
        let owned = Arc::clone(app);
        let made = app.tasks.spawn(async move {
            let blob = owned.store.begin_blob().await?;
            Ok(Self { app: owned, blob, decided: false })
        });
        made.await.map_err(ApiError::internal)?
    }

    /// What becomes of it was decided in the database.
    pub(super) fn decided(mut self) {
        self.decided = true;
    }

    /// Removes it now.
    pub(super) async fn remove(mut self) {
        self.decided = true;
        remove(&self.app, self.blob).await;
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if !self.decided {
            let (app, blob) = (Arc::clone(&self.app), self.blob);
            self.app.tasks.spawn(async move { remove(&app, blob).await });
        }
    }
}

async fn remove(app: &App, blob: BlobId) {
    match timeout(REMOVAL, app.store.discard_blob(blob)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, blob = blob.0, "an unfinished upload was not removed and is left to the sweep");
        }
        Err(_) => {
            tracing::warn!(blob = blob.0, "an unfinished upload was not removed in time and is left to the sweep")
        }
    }
}
