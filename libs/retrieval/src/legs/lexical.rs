//! The lexical leg: BM25 over the postings of the query's terms.

use std::collections::HashMap;

use domain::ChunkId;
use store::Store;
use store::filters::Within;
use store::search::{LexicalCorpus, SearchSettings};

use crate::analyzer::{Language, Query};
use crate::bm25::{self, Corpus, Posting, Segment};
use crate::error::PartError;
use crate::narrowing::{narrow, share};

/// Chunks that match the query's words, best first.
pub(crate) async fn find(
    store: &Store,
    settings: &SearchSettings,
    query: &str,
    within: Option<&Within>,
    limit: usize,
) -> Result<Vec<ChunkId>, PartError> {
    // Without a language of its own a store has chunks in any: the query is read in each that it may be in.
    let languages = match settings.language.as_deref() {
        Some(code) => vec![Language::from_code(code)],
        None => Language::candidates(query),
    };
    let query = Query::parse(query, &languages);
    if query.terms.is_empty() {
        return Ok(Vec::new());
    }
    let mut postings = store.list_postings(settings.store, &query.terms).await?;
    if let Some(within) = within {
        let mut segments: Vec<i64> = postings.iter().map(|posting| posting.segment).collect();
        segments.sort_unstable();
        segments.dedup();
        narrow(&mut postings, &store.list_segment_parts(settings.store, &segments, within).await?);
    }
    if postings.is_empty() {
        return Ok(Vec::new());
    }
    let mut ids: Vec<i64> = postings.iter().map(|posting| posting.segment).collect();
    ids.sort_unstable();
    ids.dedup();
    let (mut corpus, segments) =
        tokio::try_join!(store.lexical_corpus(settings.store), store.list_segments(settings.store, &ids))?;

    if let Some(within) = within {
        corpus = LexicalCorpus { chunks: within.chunks, terms: share(corpus.terms, corpus.chunks, within.chunks) };
    }
    let mut by_term: HashMap<&str, Vec<Posting<'_>>> = HashMap::new();
    for posting in &postings {
        by_term.entry(&posting.term).or_default().push(Posting {
            segment: posting.segment,
            ordinals: &posting.ordinals,
            frequencies: &posting.frequencies,
        });
    }
    let terms: Vec<Vec<Posting<'_>>> = by_term.into_values().collect();
    let scored: Vec<Segment<'_>> = segments
        .iter()
        .map(|segment| Segment { id: segment.id, first_ordinal: segment.first_ordinal, lengths: &segment.lengths })
        .collect();
    let corpus =
        Corpus { chunks: u64::try_from(corpus.chunks).unwrap_or(0), terms: u64::try_from(corpus.terms).unwrap_or(0) };
    let hits = bm25::top_k(corpus, &terms, &scored, limit);

    let owners: HashMap<i64, _> =
        segments.iter().map(|segment| (segment.id, (segment.document, segment.content_version))).collect();
    let places: Vec<_> = hits
        .iter()
        .filter_map(|hit| owners.get(&hit.segment).map(|(document, version)| (*document, *version, hit.ordinal)))
        .collect();
    let chunks = store.find_chunks_at(settings.store, &places).await?;
    let found: Vec<ChunkId> = chunks.into_iter().flatten().collect();
    if query.phrases.is_empty() && query.excluded.is_empty() {
        return Ok(found);
    }
    // Quotes and minus are read on the text itself; the postings have no positions.
    let language = languages.first().copied().unwrap_or(Language::NONE);
    let passages = store.list_passages(settings.store, &found).await?;
    let accepted: std::collections::HashSet<ChunkId> = passages
        .iter()
        .filter(|passage| query.accepts(&passage.content, language))
        .map(|passage| passage.chunk)
        .collect();
    Ok(found.into_iter().filter(|chunk| accepted.contains(chunk)).collect())
}
