//! The lexical leg: BM25 over the postings of the query's terms.

use std::collections::{HashMap, HashSet};

use domain::ChunkId;
use store::Store;
use store::filters::Within;
use store::lexical::{LexicalRead, Place};
use store::search::SearchSettings;

use crate::bm25::{self, Corpus, Hit, Posting, Segment};
use crate::error::PartError;
use crate::narrowing::{narrow, share};
use crate::plan::Question;

/// Ranks that are looked at for such as are live and have what the question demands, so many times those asked for.
const DEPTH: usize = 20;
/// A fold that commits between reading and looking up makes it read anew.
const READS: usize = 3;

/// Chunks that match the query's words with their scores, best first.
pub(crate) async fn find(
    store: &Store,
    settings: &SearchSettings,
    question: &Question,
    within: Option<&Within>,
    limit: usize,
) -> Result<Vec<(ChunkId, f64)>, PartError> {
    if question.query.terms.is_empty() {
        return Ok(Vec::new());
    }
    for _ in 1..READS {
        if let Some(found) = find_once(store, settings, question, within, limit, false).await? {
            return Ok(found);
        }
    }
    // What keeps being folded away is left out rather than waited for.
    Ok(find_once(store, settings, question, within, limit, true).await?.unwrap_or_default())
}

/// `None` when a segment was folded into another while it was looked at, unless such are to be left out.
async fn find_once(
    store: &Store,
    settings: &SearchSettings,
    question: &Question,
    within: Option<&Within>,
    limit: usize,
    leave_out_moved: bool,
) -> Result<Option<Vec<(ChunkId, f64)>>, PartError> {
    let mut read = store.read_lexical(settings.store, &question.query.terms).await?;
    if let Some(within) = within {
        let segments: Vec<i64> = read.segments.iter().map(|segment| segment.id).collect();
        let parts = store.list_segment_parts(settings.store, &segments, within).await?;
        if !narrow(&mut read.postings, &parts) && !leave_out_moved {
            return Ok(None);
        }
        (read.chunks, read.terms) = (within.chunks, share(read.terms, read.chunks, within.chunks));
    }
    let hits = ranked(&read, limit.saturating_mul(DEPTH));
    let mut found: Vec<(ChunkId, f64)> = Vec::with_capacity(limit);
    // Mostly the first few are all that is needed.
    let mut from = 0;
    while found.len() < limit && from < hits.len() {
        let to = hits.len().min(if from == 0 { limit } else { from * 4 });
        let these = hits.get(from..to).unwrap_or_default();
        let places: Vec<(i64, i32)> = these.iter().map(|hit| (hit.segment, hit.ordinal)).collect();
        let resolved = store.resolve_places(settings.store, &places).await?;
        if !leave_out_moved && resolved.contains(&Place::Moved) {
            return Ok(None);
        }
        let live = resolved.into_iter().zip(these).filter_map(|(place, hit)| match place {
            Place::Chunk(chunk) => Some((chunk, hit.score)),
            Place::Gone | Place::Moved => None,
        });
        found.extend(accepted(store, settings, question, live.collect()).await?);
        from = to;
    }
    found.truncate(limit);
    Ok(Some(found))
}

fn ranked(read: &LexicalRead, limit: usize) -> Vec<Hit> {
    let mut by_term: HashMap<&str, Vec<Posting<'_>>> = HashMap::new();
    for posting in &read.postings {
        by_term.entry(&posting.term).or_default().push(Posting {
            segment: posting.segment,
            ordinals: &posting.ordinals,
            frequencies: &posting.frequencies,
        });
    }
    let terms: Vec<Vec<Posting<'_>>> = by_term.into_values().collect();
    let segments: Vec<Segment<'_>> = read
        .segments
        .iter()
        .map(|segment| Segment { id: segment.id, first_ordinal: segment.first_ordinal, lengths: &segment.lengths })
        .collect();
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    bm25::top_k(Corpus { chunks: count(read.chunks), terms: count(read.terms) }, &terms, &segments, limit)
}

/// Those that have the question's phrases and nothing that it excludes. The postings have no positions, so this is read on
/// the text itself.
async fn accepted(
    store: &Store,
    settings: &SearchSettings,
    question: &Question,
    chunks: Vec<(ChunkId, f64)>,
) -> Result<Vec<(ChunkId, f64)>, PartError> {
    if !question.query.demands() {
        return Ok(chunks);
    }
    let ids: Vec<ChunkId> = chunks.iter().map(|(chunk, _)| *chunk).collect();
    let passages = store.list_passages(settings.store, &ids).await?;
    let good: HashSet<ChunkId> =
        passages.iter().filter(|passage| question.accepts(&passage.content)).map(|passage| passage.chunk).collect();
    Ok(chunks.into_iter().filter(|(chunk, _)| good.contains(chunk)).collect())
}
