//! `POST /rag-stores/{id}/search`

use std::sync::Arc;

use axum::extract::State;
use domain::{DocumentFilter, RetrievalSettings, StoreId};
use retrieval::{Explained, Hit, Plan, Search};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::read;
use crate::app::App;
use crate::auth::Caller;
use crate::body::Json;
use crate::error::ApiError;
use crate::path::Id;
use crate::routes::checks;

/// A question to try a store with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    query: String,
    /// Passages, 1 to 100.
    #[serde(default = "default_top_k")]
    top_k: u32,
    /// Which documents may be found, as for `/v1/retrieve`.
    filter: Option<Value>,
}

fn default_top_k() -> u32 {
    10
}

/// What the store finds, and how.
#[derive(Serialize)]
pub(crate) struct Found {
    hits: Vec<Passage>,
    /// Legs that failed and were left out.
    degraded: Vec<&'static str>,
    /// Whether every vector was compared with the question, and not only those that an index led to.
    exhaustive: bool,
    /// Which legs searched, what they weighed, and why.
    plan: Plan,
}

#[derive(Serialize)]
struct Passage {
    document_id: i64,
    chunk_id: i64,
    filename: String,
    section: String,
    page_from: Option<i32>,
    page_to: Option<i32>,
    tokens: i32,
    score: f64,
    /// Which legs found it, at which rank and by what.
    legs: Explained,
    content: String,
}

/// Searches a store as a chat would, without a reranker, and tells how each passage was found. The one embedding that it
/// takes is at no project's charge.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<StoreId>,
    caller: Caller,
    Json(asked): Json<Asked>,
) -> Result<axum::Json<Found>, ApiError> {
    let store = read(&app, caller.reach(), id).await?;
    let top_k = checks::within("top_k", asked.top_k, 1, RetrievalSettings::MOST_PASSAGES)?;
    if asked.query.trim().is_empty() {
        return Err(ApiError::invalid("query: expected a question"));
    }
    let query: String = asked.query.chars().take(super::LONGEST_QUERY_CHARS).collect();
    let top_k = usize::try_from(top_k).unwrap_or(usize::MAX);
    let filter = asked.filter.map(|filter| DocumentFilter::parse(&filter, "filter")).transpose();
    let filter = filter.map_err(|fault| ApiError::invalid(format!("{}: expected {}", fault.field, fault.must)))?;
    let search =
        Search { project: store.project, store: id, query: &query, top_k, filter: filter.as_ref(), rerank: None };
    let found = app.retrieval.search(&search, &mut |_| ()).await?;
    Ok(axum::Json(Found {
        hits: found.hits.into_iter().map(Passage::from).collect(),
        degraded: found.degraded,
        exhaustive: found.exhaustive,
        plan: found.plan,
    }))
}

impl From<Hit> for Passage {
    fn from(hit: Hit) -> Self {
        let legs = Explained::of(&hit);
        let passage = hit.passage;
        Self {
            document_id: passage.document.0,
            chunk_id: passage.chunk.0,
            filename: passage.file_name,
            section: passage.heading_path,
            page_from: passage.page_from,
            page_to: passage.page_to,
            tokens: passage.token_count,
            score: hit.score,
            legs,
            content: passage.content,
        }
    }
}
