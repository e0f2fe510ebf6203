//! Grounding: passages of the project's documents for a chat, and what the client is told of them.

mod condense;
mod sources;

use std::sync::Arc;

use domain::{
    DocumentFilter, NanoUsd, PriceSnapshot, ProjectId, ProviderType, RetrievalSettings, RetrieveWhen, StoreId,
};
use http::{HeaderMap, HeaderValue};
use ledger::{OpenCall, PriceBook};
use providers::{Inbound, Providers};
use retrieval::{Hit, ModelUse, Reranker, Retrieval, Retrieved, Search, Work};
use tokens::Family;
use unicode_segmentation::UnicodeSegmentation;

use crate::admission::TokenCounter;
use crate::auth::Caller;
use crate::catalog::{Project, PublicRoute, Rerank};
use crate::error::EdgeError;
use crate::header_names::{HITS, SOURCES};

use condense::Condensing;
pub(crate) use condense::Way;
pub(crate) use sources::{Source, sources_member};

/// Passages looked for where the project does not say how many.
const DEFAULT_TOP_K: usize = 8;

/// Shorter turns are greetings and thanks, for which no document has an answer.
const FEWEST_WORDS: usize = 4;

/// The part of a message that is searched for. Embedding models read little more, and a search for a whole document
/// finds nothing in particular.
const LONGEST_QUERY_CHARS: usize = 4_000;

/// What is to be searched for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    project: ProjectId,
    pub(crate) store: StoreId,
    pub(crate) query: String,
    pub(crate) top_k: usize,
    /// Which documents may be found, if not all.
    pub(crate) filter: Option<DocumentFilter>,
    /// What is asked of the route's model first, whose answer is searched for in place of the query.
    condensing: Option<Condensing>,
    /// Who orders what is found, if not the search alone.
    rerank: Option<Arc<Rerank>>,
    /// Whether somebody is to who is gone, or cannot.
    lacks_reranker: bool,
}

/// A question that a model made of a conversation is not held by its tokens, which nobody knows yet.
const CONDENSED_QUERY_TOKENS: i64 = 256;

impl Plan {
    /// The search a chat's turn asks for, if it asks for one.
    pub(crate) fn for_chat(project: &Project, route: &PublicRoute, request: &Inbound<'_>) -> Option<Self> {
        let store = project.store?;
        if route.context_tokens <= 0 {
            return None;
        }
        let text = request.last_user_text()?;
        let asks = match project.retrieval.when {
            RetrieveWhen::Never => false,
            RetrieveWhen::Always => !text.trim().is_empty(),
            RetrieveWhen::Auto => {
                !request.ends_with_tool_result() && text.unicode_words().nth(FEWEST_WORDS - 1).is_some()
            }
        };
        asks.then(|| Self { condensing: Condensing::of(project, request), ..Self::of(project, store, &text, None) })
    }

    /// The search for a text, as it stands.
    pub(crate) fn of(project: &Project, store: StoreId, text: &str, top_k: Option<usize>) -> Self {
        Self {
            project: project.id,
            store,
            query: cut(text),
            top_k: passages(project, top_k),
            filter: None,
            condensing: None,
            rerank: project.rerank.clone(),
            lacks_reranker: project.lacks_reranker,
        }
    }

    /// What the condensation of the conversation is held at, wherever on the route it is asked for: its tokens and their
    /// cost.
    pub(crate) async fn hold_condensing(
        &self,
        route: &PublicRoute,
        dearest: &PriceSnapshot,
        counter: &TokenCounter,
    ) -> Result<(i64, NanoUsd), EdgeError> {
        match &self.condensing {
            Some(condensing) => condensing.hold(route, dearest, counter).await,
            None => Ok((0, NanoUsd::ZERO)),
        }
    }

    /// What the search is held at, the query's embedding and the reranking of what it finds: tokens and their cost.
    pub(crate) async fn hold(
        &self,
        project: &Project,
        caller: &Caller,
        prices: &PriceBook,
        counter: &TokenCounter,
    ) -> Result<(i64, NanoUsd), EdgeError> {
        let Some((provider, model)) = &project.embedding else { return Ok((0, NanoUsd::ZERO)) };
        let (snapshot, source) = prices.price(*provider, model);
        project.allow_price(caller, source, model)?;
        let least = if self.condensing.is_some() { CONDENSED_QUERY_TOKENS } else { 0 };
        let tokens = counter.text(Family::of(model), &self.query).await?.max(least);
        let cost = snapshot.cost(tokens, 0, 0, 0);
        let Some(rerank) = &self.rerank else { return Ok((tokens, cost)) };
        let target = &rerank.target;
        let (snapshot, source) = prices.price(target.provider, &target.model);
        project.allow_price(caller, source, &target.model)?;
        let query = counter.text(Family::Estimated, &self.query).await?.max(least);
        let (reranked, units) = Reranker::most(query, rerank.candidates);
        let reranking = reranking_cost(target.provider, &snapshot, reranked, units);
        Ok((tokens.saturating_add(reranked), cost + reranking))
    }
}

/// What a reranking costs. Cohere bills searches (Pricing, Rerank): what its models' price is per million of is search
/// units, and tokens cost nothing.
fn reranking_cost(provider: ProviderType, price: &PriceSnapshot, tokens: i64, search_units: i64) -> NanoUsd {
    let paid = if provider == ProviderType::CohereRerank { search_units } else { tokens };
    price.cost(paid, 0, 0, 0)
}

/// The start of a text that is searched for.
fn cut(text: &str) -> String {
    text.chars().take(LONGEST_QUERY_CHARS).collect()
}

/// How many passages are looked for.
fn passages(project: &Project, asked: Option<usize>) -> usize {
    let of = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let configured = project.retrieval.top_k.filter(|top_k| *top_k > 0).map(of);
    asked.or(configured).unwrap_or(DEFAULT_TOP_K).min(of(RetrievalSettings::MOST_PASSAGES))
}

/// Searches for the calls of an edge.
pub(crate) struct Grounding {
    retrieval: Retrieval,
    providers: Providers,
}

/// What a chat is grounded on: the passages that found room, and the block they were put into.
#[derive(Debug, Default)]
pub(crate) struct Grounded {
    pub(crate) hits: Vec<Hit>,
    pub(crate) block: Option<String>,
    pub(crate) block_tokens: i64,
}

/// Tokens of a query's embedding.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Embedded {
    /// What is charged.
    pub(crate) tokens: i64,
    /// What the provider said.
    pub(crate) reported: Option<i64>,
}

impl Grounding {
    pub(crate) fn new(retrieval: Retrieval, providers: Providers) -> Self {
        Self { retrieval, providers }
    }

    /// Searches and charges what the search cost to the call, however it ends. With what was found comes what the
    /// query's embedding used.
    pub(crate) async fn search(
        &self,
        plan: &Plan,
        prices: &PriceBook,
        call: &mut OpenCall,
    ) -> Result<(Retrieved, Embedded), EdgeError> {
        let rerank = plan.rerank.as_deref();
        let rerank = rerank.map(|rerank| Reranker { target: &rerank.target, candidates: rerank.candidates });
        let search = Search {
            project: plan.project,
            store: plan.store,
            query: &plan.query,
            top_k: plan.top_k,
            filter: plan.filter.as_ref(),
            rerank,
        };
        let mut embedded = Embedded::default();
        let mut owed = |used: ModelUse| {
            let (snapshot, _) = prices.price(used.provider, &used.model);
            let cost = match used.work {
                Work::Embedding => {
                    embedded = Embedded { tokens: used.tokens, reported: (!used.estimated).then_some(used.tokens) };
                    snapshot.cost(used.tokens, 0, 0, 0)
                }
                Work::Reranking => reranking_cost(used.provider, &snapshot, used.tokens, used.search_units),
            };
            call.add_side_charge(used.tokens, cost, used.estimated);
        };
        let mut found = self.retrieval.search(&search, &mut owed).await?;
        if plan.lacks_reranker {
            found.degraded.push("rerank");
        }
        Ok((found, embedded))
    }

    /// Grounds a chat. A search that fails leaves the chat without passages.
    pub(crate) async fn ground(
        &self,
        mut plan: Plan,
        way: Way<'_>,
        budget: i64,
        family: Family,
        counter: &TokenCounter,
        call: &mut OpenCall,
    ) -> Grounded {
        let store = plan.store;
        let grounded = async {
            if let Some(condensing) = plan.condensing.take()
                && let Some(question) = condensing.ask(&self.providers, way, counter, call).await
            {
                plan.query = question;
            }
            let (found, _) = self.search(&plan, way.prices, call).await?;
            let budget = usize::try_from(budget).unwrap_or(0);
            let (hits, context) = counter
                .work(move || {
                    let context = retrieval::context::block(&found.hits, budget, family);
                    (found.hits, context)
                })
                .await?;
            let Some(context) = context else { return Ok(Grounded::default()) };
            Ok::<_, EdgeError>(Grounded {
                hits: hits.into_iter().take(context.hits).collect(),
                block_tokens: i64::try_from(context.tokens).unwrap_or(i64::MAX),
                block: Some(context.text),
            })
        };
        match grounded.await {
            Ok(grounded) => grounded,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, store_id = store.0, "a chat goes on without passages");
                Grounded::default()
            }
        }
    }
}

impl Grounded {
    /// Tells in headers how many passages were used and where they are from.
    pub(crate) fn describe(&self, headers: &mut HeaderMap) {
        headers.insert(HITS, HeaderValue::from(self.hits.len()));
        if !self.hits.is_empty()
            && let Ok(value) = HeaderValue::from_str(&sources::sources_header(&self.hits))
        {
            headers.insert(SOURCES, value);
        }
    }
}
