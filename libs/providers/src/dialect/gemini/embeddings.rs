//! Texts as vectors (Gemini API reference, models.batchEmbedContents).

use bytes::Bytes;
use serde::Serialize;

use super::error::{error_in, in_answer};
use super::{path, resource};
use crate::dialect::embeddings::Embedded;
use crate::error::UpstreamError;
use crate::json::{Members, elements};

/// The most texts of one call: what its refusal names ("at most 100 requests can be in one batch"), and what the
/// reference says of the method before it (models.batchEmbedText).
pub(crate) const MOST_TEXTS: usize = 100;

#[derive(Serialize)]
struct Body<'a> {
    requests: Vec<Request<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    model: &'a str,
    content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_dimensionality: Option<u64>,
}

#[derive(Serialize)]
struct Content<'a> {
    parts: [Part<'a>; 1],
}

#[derive(Serialize)]
struct Part<'a> {
    text: &'a str,
}

/// Where a call goes.
pub(crate) fn embed_path(model: &str) -> String {
    path(model, "batchEmbedContents")
}

/// The body of a call.
///
/// # Errors
/// None in practice: the parts of a body all have a form as JSON.
pub(crate) fn embed_body(model: &str, texts: &[&str], dimensions: Option<u64>) -> Result<Vec<u8>, serde_json::Error> {
    let model = resource(model);
    let mut requests = Vec::with_capacity(texts.len());
    for text in texts {
        let content = Content { parts: [Part { text }] };
        requests.push(Request { model: &model, content, output_dimensionality: dimensions });
    }
    serde_json::to_vec(&Body { requests })
}

/// The vectors of an answer. The API does not tell what they cost.
///
/// # Errors
/// It is none.
pub(crate) fn read_embedded<'a>(answer: &'a Bytes, credential: Option<&str>) -> Result<Embedded<'a>, UpstreamError> {
    let text = std::str::from_utf8(answer).map_err(|_| UpstreamError::BadAnswer("it is not UTF-8"))?;
    if let Some(error) = error_in(text) {
        return Err(in_answer(&error, credential));
    }
    let none = || UpstreamError::BadAnswer("it has no embeddings");
    let members = Members::parse(text).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    let list = members.present("embeddings").and_then(|value| elements(value.get()).ok()).ok_or_else(none)?;
    let values = list.into_iter().map(|item| Members::parse(item.get()).ok()?.present("values"));
    Ok(Embedded { vectors: values.collect::<Option<_>>().ok_or_else(none)?, tokens: None })
}
