//! From parsed pages to the chunks that are to be written. Pure work, run on a thread of its own.

use domain::DocumentFailure;
use extract::Extracted;
use extract::chunk::{Chunk, ChunkSettings, chunks, embedded_text};
use sha2::{Digest, Sha256};
use store::ingest::IngestSettings;
use tokens::Family;

/// A chunk and what is embedded for it.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) chunk: Chunk,
    /// The text that is embedded: with title and headings when the store says so.
    pub(crate) embedded: String,
    /// SHA-256 of that text: the key of the memo, and how a later claim recognises the chunk.
    pub(crate) hash: Vec<u8>,
    /// Tokens of that text.
    pub(crate) tokens: i64,
}

/// Cuts a document as its store wants it.
pub(crate) fn plan(
    extracted: &Extracted,
    settings: &IngestSettings,
    max_chunks: usize,
) -> Result<Vec<Planned>, DocumentFailure> {
    let family = Family::of(&settings.embedding.model);
    let count = |text: &str| tokens::count(family, text);
    let size = |tokens: i32| usize::try_from(tokens).unwrap_or(0);
    let cut = ChunkSettings { size: size(settings.chunk_tokens), overlap: size(settings.chunk_overlap), max_chunks };
    let chunks = chunks(extracted, &cut, &count)?;
    if chunks.is_empty() {
        return Err(DocumentFailure::NoText);
    }
    let title = extracted.summary.title.as_deref();
    Ok(chunks
        .into_iter()
        .map(|chunk| {
            let embedded = if settings.contextual { embedded_text(&chunk, title) } else { chunk.content.clone() };
            let hash = Sha256::digest(embedded.as_bytes()).to_vec();
            let tokens = i64::try_from(count(&embedded)).unwrap_or(i64::MAX);
            Planned { chunk, embedded, hash, tokens }
        })
        .collect())
}
