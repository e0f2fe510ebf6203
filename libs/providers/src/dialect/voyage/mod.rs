//! Voyage AI's rerank API (API reference, Rerankers). Its limits, such as 1,000 documents, differ by model in what they
//! say of tokens; they are left to it to refuse by, since an order of parts is no order of the whole.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::UpstreamError;
use crate::rerank::{Ranked, RerankRequest, Reranked};
use crate::usage::Usage;

/// What has its place here, or is for us.
const TAKEN: [&str; 7] = ["model", "query", "documents", "top_n", "return_documents", "ragmux", "metadata"];

#[derive(Serialize)]
struct Body<'a, T: Serialize> {
    model: &'a str,
    query: &'a str,
    documents: &'a [T],
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<usize>,
    /// What is too long for the model is cut rather than refused, as at Cohere.
    truncation: bool,
}

/// A client's request as it goes upstream. What has no place there is listed.
pub(crate) fn body(request: &RerankRequest<'_>, model: &str, dropped: &mut Vec<String>) -> Bytes {
    let names = request.members.iter().filter(|(_, value)| value.get() != "null").map(|(name, _)| name);
    dropped.extend(names.filter(|name| !TAKEN.contains(name)).map(str::to_owned));
    // More than there are is refused (API reference, Rerankers, `top_k`).
    let top_k = request.top_n.map(|top_n| top_n.min(request.documents.len()));
    let body = Body { model, query: &request.query, documents: &request.documents, top_k, truncation: true };
    Bytes::from(serde_json::to_vec(&body).unwrap_or_default())
}

/// The body of a call of ours.
pub(crate) fn own_body(model: &str, query: &str, documents: &[&str], top_n: Option<usize>) -> Bytes {
    let top_k = top_n.map(|top_n| top_n.min(documents.len()));
    Bytes::from(serde_json::to_vec(&Body { model, query, documents, top_k, truncation: true }).unwrap_or_default())
}

/// Reads an answer.
pub(crate) fn read(body: &Bytes) -> Result<Reranked, UpstreamError> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        data: Vec<Item>,
        #[serde(borrow)]
        usage: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Item {
        index: usize,
        relevance_score: f64,
    }
    let answer: Answer<'_> = serde_json::from_slice(body).map_err(|_| UpstreamError::BadAnswer("it has no data"))?;
    Ok(Reranked {
        id: None,
        results: answer
            .data
            .into_iter()
            .map(|item| Ranked { index: item.index, score: item.relevance_score })
            .collect(),
        usage: answer.usage.and_then(Usage::read_believed),
        search_units: None,
    })
}
