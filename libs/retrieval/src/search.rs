//! A search: two legs side by side, each with its own deadline, fused.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{ChunkId, DocumentFilter, ProjectId, Secret, StoreId};
use providers::Providers;
use store::search::Passage;
use store::targets::UpstreamTarget;
use store::{Store, StoreError};
use tokio::time::timeout;

use crate::choose::{choose, join_neighbours};
use crate::error::PartError;
use crate::fusion::{self, Leg};
use crate::legs::{lexical, vector};
use crate::owed::ModelUse;
use crate::plan::{Plan, Question};
use crate::query_cache::QueryCache;
use crate::rerank::{self, Reranker};

/// What a leg looks at before fusion.
pub(crate) const CANDIDATES: usize = 100;
pub(crate) const LEXICAL_DEADLINE: Duration = Duration::from_secs(2);
/// Includes the call that embeds the query.
pub(crate) const VECTOR_DEADLINE: Duration = Duration::from_secs(5);

/// Opens a connection's sealed credential. `Err` when this process cannot.
pub type OpenCredential = Arc<dyn Fn(&UpstreamTarget) -> Result<Option<Secret>, CredentialUnreadable> + Send + Sync>;

/// The credential was sealed with a key this process does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection's credential cannot be opened with this SECRET_KEY")]
pub struct CredentialUnreadable;

/// Searches stores. Cheap to clone.
#[derive(Clone)]
pub struct Retrieval {
    pub(crate) store: Store,
    pub(crate) providers: Providers,
    pub(crate) open_credential: OpenCredential,
    pub(crate) queries: Arc<QueryCache>,
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// Who asks and pays.
    pub project: ProjectId,
    /// Where. That the caller may read it is for the caller to have checked.
    pub store: StoreId,
    /// The question, in words. Quotes and a leading minus mean something to the lexical leg.
    pub query: &'a str,
    /// How many passages.
    pub top_k: usize,
    /// Which documents may be found, if not all.
    pub filter: Option<&'a DocumentFilter>,
    /// Who orders what was found, if not the search alone.
    pub rerank: Option<Reranker<'a>>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Retrieved {
    /// Best first.
    pub hits: Vec<Hit>,
    /// Parts that failed or ran out of time and were left out: `lexical`, `vector`, `rerank`.
    pub degraded: Vec<&'static str>,
    /// Whether the query was compared with every vector of the store that it may find: not through an index, which may
    /// miss some.
    pub exhaustive: bool,
    /// How it was searched.
    pub plan: Plan,
}

/// One passage and how it was found.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The passage.
    pub passage: Passage,
    /// Sum of weight / (60 + rank) over the legs.
    pub score: f64,
    /// Its rank in the vector leg, from 1.
    pub vector_rank: Option<u32>,
    /// Its rank in the lexical leg, from 1.
    pub lexical_rank: Option<u32>,
    /// Its BM25 score, if the lexical leg found it; compares with nothing but the other hits.
    pub lexical_score: Option<f64>,
    /// Cosine distance to the query, if the vector leg found it.
    pub distance: Option<f64>,
    /// How well it answers the query, if a model was asked and said so; compares with nothing but the other hits.
    pub rerank_score: Option<f64>,
}

/// Why nothing can be said about a store.
#[derive(Debug, thiserror::Error)]
pub enum RetrievalError {
    /// There is no such store.
    #[error("the document store does not exist")]
    NoStore,
    /// The database failed before any leg could start.
    #[error("the document store cannot be read")]
    Store(#[source] StoreError),
    /// Both legs failed.
    #[error("no part of the search could be carried out")]
    AllLegsFailed,
}

impl Retrieval {
    /// A searcher over these parts.
    #[must_use]
    pub fn new(store: Store, providers: Providers, open_credential: OpenCredential) -> Self {
        Self { store, providers, open_credential, queries: Arc::default() }
    }

    /// Finds the passages of a store that answer a question best. A leg that fails is left out and named in
    /// [`Retrieved::degraded`], and so is a reranker: the order stays that of the legs then.
    ///
    /// `owed` hears what each call to a model used as soon as the provider has answered, so that it is known however the
    /// search ends: with an error, or dropped. Of a search that is dropped while the provider works it hears our own
    /// count. A query that its project has asked a short while ago is not embedded again, and costs nothing.
    ///
    /// # Errors
    /// [`RetrievalError`]; a provider that is away is not one of them.
    pub async fn search(
        &self,
        search: &Search<'_>,
        owed: &mut (dyn FnMut(ModelUse) + Send),
    ) -> Result<Retrieved, RetrievalError> {
        let settings = self
            .store
            .find_search_settings(search.store)
            .await
            .map_err(RetrievalError::Store)?
            .ok_or(RetrievalError::NoStore)?;
        if search.query.trim().is_empty() || search.top_k == 0 {
            return Ok(Retrieved::default());
        }
        let within = self.within(search).await?;
        if within.as_ref().is_some_and(|within| within.documents.is_empty()) {
            return Ok(Retrieved { exhaustive: true, ..Retrieved::default() });
        }
        let within = within.as_ref();
        let question = Question::read(search.query, &settings);
        let plan = Plan::of(search.query, &question, &settings);
        let (lexical, vector) = tokio::join!(
            leg(
                plan.lexical_weight,
                LEXICAL_DEADLINE,
                lexical::find(&self.store, &settings, &question, within, CANDIDATES)
            ),
            leg(
                plan.vector_weight,
                VECTOR_DEADLINE,
                vector::find(self, &settings, search, within, CANDIDATES, &mut *owed)
            ),
        );
        let mut found = Retrieved { plan, ..Retrieved::default() };
        let worked = matches!(lexical, Some(Ok(_))) || matches!(vector, Some(Ok(_)));
        let lexical = found.kept("lexical", search.store, lexical);
        let vector = vector.map(|answer| {
            answer.map(|neighbours| {
                found.exhaustive = neighbours.plan.is_exhaustive();
                neighbours.hits
            })
        });
        let vector = found.kept("vector", search.store, vector);
        if !worked && !found.degraded.is_empty() {
            return Err(RetrievalError::AllLegsFailed);
        }
        let distances: HashMap<ChunkId, f64> = vector.iter().map(|hit| (hit.chunk, hit.distance)).collect();
        let scores: HashMap<ChunkId, f64> = lexical.iter().copied().collect();
        let near = |distance: f64| settings.tuning.max_distance.is_none_or(|most| distance <= most);
        let fused = fusion::fuse(&[
            Leg {
                weight: plan.vector_weight,
                ranked: vector.iter().filter(|hit| near(hit.distance)).map(|hit| hit.chunk).collect(),
            },
            Leg { weight: plan.lexical_weight, ranked: lexical.iter().map(|(chunk, _)| *chunk).collect() },
        ]);
        let kept = search.top_k.max(search.rerank.map_or(0, |reranker| reranker.candidates));
        // Enough that the cap a document has still leaves the number asked for.
        let wanted: Vec<ChunkId> = fused.iter().take(kept.saturating_mul(4).max(20)).map(|fused| fused.id).collect();
        let passages = self.store.list_passages(search.store, &wanted).await.map_err(RetrievalError::Store)?;
        let mut by_chunk: HashMap<ChunkId, Passage> =
            passages.into_iter().map(|passage| (passage.chunk, passage)).collect();
        let ranked = fused.into_iter().filter_map(|fused| {
            Some(Hit {
                passage: by_chunk.remove(&fused.id)?,
                score: fused.score,
                vector_rank: fused.ranks.first().copied().flatten(),
                lexical_rank: fused.ranks.get(1).copied().flatten(),
                lexical_score: scores.get(&fused.id).copied(),
                distance: distances.get(&fused.id).copied(),
                rerank_score: None,
            })
        });
        // Vectors know nothing of quotes and minus.
        let accepted = ranked.filter(|hit| question.accepts(&hit.passage.content));
        found.hits = join_neighbours(choose(accepted, kept), settings.tuning.passage_tokens());
        if let Some(reranker) = &search.rerank {
            let hits = std::mem::take(&mut found.hits);
            found.hits =
                rerank::order(self, reranker, search.query, hits, owed).await.unwrap_or_else(|(hits, error)| {
                    found.left_out("rerank", search.store, &error);
                    hits
                });
        }
        found.hits.truncate(search.top_k);
        Ok(found)
    }
}

/// What a leg found; `None` when it weighs nothing and is not asked.
async fn leg<T>(
    weight: f64,
    deadline: Duration,
    find: impl Future<Output = Result<T, PartError>>,
) -> Option<Result<T, PartError>> {
    if weight > 0.0 { Some(timeout(deadline, find).await.unwrap_or(Err(PartError::TooLong))) } else { None }
}

impl Retrieved {
    /// What a leg found; nothing if it failed, which is noted.
    fn kept<T>(&mut self, part: &'static str, store: StoreId, leg: Option<Result<Vec<T>, PartError>>) -> Vec<T> {
        leg.unwrap_or_else(|| Ok(Vec::new())).unwrap_or_else(|error| {
            self.left_out(part, store, &error);
            Vec::new()
        })
    }

    fn left_out(&mut self, part: &'static str, store: StoreId, error: &PartError) {
        let (status, error): (_, &dyn std::error::Error) = (error.status(), error);
        tracing::warn!(store_id = store.0, part, status, error, "a part of a search was left out");
        self.degraded.push(part);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use domain::DocumentId;

    use super::*;

    pub(crate) fn hit(chunk: i64, document: i64, content: &str) -> Hit {
        Hit {
            passage: Passage {
                chunk: ChunkId(chunk),
                document: DocumentId(document),
                file_name: "manual.pdf".to_owned(),
                title: None,
                ordinal: 0,
                heading_path: "Care > Descaling".to_owned(),
                page_from: Some(4),
                page_to: Some(4),
                char_from: 0,
                char_to: i32::try_from(content.chars().count()).unwrap(),
                content: content.to_owned(),
                token_count: 5,
            },
            score: 1.0,
            vector_rank: None,
            lexical_rank: Some(1),
            lexical_score: Some(1.0),
            distance: None,
            rerank_score: None,
        }
    }
}
