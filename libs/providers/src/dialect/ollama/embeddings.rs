//! Texts as vectors (Ollama API, Generate embeddings).

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::dialect::embeddings::Embedded;
use crate::dialect::openai::in_body;
use crate::error::UpstreamError;
use crate::json::{elements, object};
use crate::usage::count;

pub(crate) const EMBED_PATH: &str = "embed";

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    input: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u64>,
}

/// The body of a call.
///
/// # Errors
/// None in practice: the parts of a body all have a form as JSON.
pub(crate) fn embed_body(model: &str, texts: &[&str], dimensions: Option<u64>) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Body { model, input: texts, dimensions })
}

/// The vectors of an answer, and the tokens of the texts where they are told.
///
/// # Errors
/// It is none.
pub(crate) fn read_embedded<'a>(answer: &'a Bytes, credential: Option<&str>) -> Result<Embedded<'a>, UpstreamError> {
    let (_, members) = object(answer).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    if let Some(error) = members.present("error") {
        return Err(in_body(error, credential));
    }
    let list = members.present("embeddings").and_then(|value| elements(value.get()).ok());
    let vectors: Vec<&'a RawValue> = list.ok_or(UpstreamError::BadAnswer("it has no embeddings"))?;
    Ok(Embedded { vectors, tokens: count(&members, &["prompt_eval_count"]) })
}
