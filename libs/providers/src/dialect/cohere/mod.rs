//! Cohere's rerank API, version 2, which is also what clients speak (API reference, Rerank).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::UpstreamError;
use crate::json::{Splices, literal, span};
use crate::rerank::{Ranked, RerankRequest, Reranked};

/// A client's request as it goes upstream: its bytes with the model's name replaced, documents that were objects as
/// their texts, which is all that version 2 takes, and without the members that this version does not have (Cohere API,
/// Migrating from API v1 to v2, Rerank).
pub(crate) fn body(request: &RerankRequest<'_>, model: &str) -> Bytes {
    let (text, members) = (request.text, &request.members);
    let mut splices = Splices::default();
    match members.get("model") {
        Some(value) => splices.replace(span(text, value.get()), literal(model)),
        None => splices.insert(members.inside(text), format!("\"model\":{},", literal(model))),
    }
    if let Some(documents) = members.get("documents").filter(|_| request.has_objects) {
        let texts = serde_json::to_vec(&request.documents).unwrap_or_default();
        splices.replace(span(text, documents.get()), texts);
    }
    for range in members.ranges_without_any(text, &["return_documents", "ragmux", "metadata"]) {
        splices.remove(range);
    }
    Bytes::from(splices.apply(text.as_bytes()))
}

/// The body of a call of ours.
pub(crate) fn own_body(model: &str, query: &str, documents: &[&str], top_n: Option<usize>) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a> {
        model: &'a str,
        query: &'a str,
        documents: &'a [&'a str],
        #[serde(skip_serializing_if = "Option::is_none")]
        top_n: Option<usize>,
    }
    Bytes::from(serde_json::to_vec(&Body { model, query, documents, top_n }).unwrap_or_default())
}

/// Reads an answer.
pub(crate) fn read(body: &Bytes) -> Result<Reranked, UpstreamError> {
    #[derive(Deserialize)]
    struct Answer {
        id: Option<String>,
        results: Vec<Item>,
        meta: Option<Meta>,
    }
    #[derive(Deserialize)]
    struct Item {
        index: usize,
        relevance_score: f64,
    }
    #[derive(Deserialize)]
    struct Meta {
        billed_units: Option<Billed>,
    }
    #[derive(Deserialize)]
    struct Billed {
        search_units: Option<f64>,
    }
    let answer: Answer = serde_json::from_slice(body).map_err(|_| UpstreamError::BadAnswer("it has no results"))?;
    let billed = answer.meta.and_then(|meta| meta.billed_units).and_then(|billed| billed.search_units);
    Ok(Reranked {
        id: answer.id,
        results: answer
            .results
            .into_iter()
            .map(|item| Ranked { index: item.index, score: item.relevance_score })
            .collect(),
        usage: None,
        // The reference gives the type as a number, with fractions for all it says.
        search_units: billed.map(|units| units.ceil().max(0.0) as i64),
    })
}
