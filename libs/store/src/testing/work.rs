//! What a worker does with a document, done by a test.

use std::time::Duration;

use anyhow::{Context, ensure};
use domain::StoreId;
use sha2::{Digest, Sha256};

use crate::Store;
use crate::ingest::{Finish, NewChunk, NewSegment};
use crate::queue::{ClaimKey, ClaimRequest, patience};

/// The lease that workers have unless somebody sets another.
pub const LEASE: Duration = Duration::from_secs(120);

/// The claim of a worker that leaves no provider alone.
#[must_use]
pub fn claim_request(owner: &str, cursor: StoreId, slots: i64) -> ClaimRequest<'_> {
    ClaimRequest {
        owner,
        cursor,
        window: 16,
        slots,
        lease: LEASE,
        max_attempts: 5,
        left_alone: &[],
        on_trial: &[],
        suspects: 1,
    }
}

/// A chunk without a page or a heading.
#[must_use]
pub fn plain_chunk(ordinal: i32, content: &str, embedding: Vec<f32>) -> NewChunk {
    NewChunk {
        ordinal,
        content: content.to_owned(),
        heading_path: String::new(),
        page_from: None,
        page_to: None,
        char_from: 0,
        char_to: 1,
        token_count: 20,
        content_hash: Sha256::digest(content).to_vec(),
        embedding,
    }
}

/// Writes all chunks of a claimed document and makes them live.
///
/// # Errors
/// When the claim is lost, or the server cannot be reached.
pub async fn complete(worker: &Store, key: ClaimKey, chunks: &[NewChunk], segment: &NewSegment) -> anyhow::Result<()> {
    let settings = worker.find_ingest_settings(key.document).await?.context("the document is gone")?;
    ensure!(worker.write_chunks(key, &settings, chunks, segment).await?, "the claim is lost");
    let finish = Finish {
        chunks: i32::try_from(chunks.len())?,
        revision: settings.revision,
        pages: None,
        title: None,
        extraction: serde_json::json!({}),
    };
    ensure!(worker.finish_document(key, &finish, patience(LEASE)).await?, "the claim is lost");
    Ok(())
}
