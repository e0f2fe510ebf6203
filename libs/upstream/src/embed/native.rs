//! Embeddings by the APIs of Gemini and Ollama: the same vectors in other words.

use serde_json::{Value, json};

use crate::{Options, answer::Answer, error::ApiError, script::Behaviour};

/// The most requests of a batch (Gemini API reference, models.batchEmbedContents).
const MOST_REQUESTS: usize = 100;

/// `POST /v1beta/models/{model}:batchEmbedContents`.
pub(crate) fn gemini(model: &str, body: &Value, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let requests = body.get("requests").and_then(Value::as_array).filter(|list| list.len() <= MOST_REQUESTS);
    let requests =
        requests.ok_or_else(|| ApiError::invalid("requests", "At most 100 requests can be in one batch."))?;
    let expected = format!("models/{model}");
    if requests.iter().any(|request| request.get("model").and_then(Value::as_str) != Some(&expected)) {
        return Err(ApiError::invalid("model", "The model of each request must be that of the batch."));
    }
    let texts: Vec<_> = requests.iter().map(|request| request.pointer("/content/parts/0/text")).collect();
    let dimensions = requests.first().and_then(|request| request.get("outputDimensionality"));
    let (vectors, _) =
        vectors(&json!({ "model": model, "input": texts, "dimensions": dimensions }), behaviour, options)?;
    let embeddings: Vec<_> = vectors.into_iter().map(|values| json!({ "values": values })).collect();
    Ok(Answer::json(&json!({ "embeddings": embeddings })))
}

/// `POST /api/embed`.
pub(crate) fn ollama(body: &Value, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let (vectors, tokens) = vectors(body, behaviour, options)?;
    Ok(Answer::json(&json!({ "model": body.get("model"), "embeddings": vectors, "prompt_eval_count": tokens })))
}

/// The vectors by OpenAI's API, and the tokens of the texts.
fn vectors(body: &Value, behaviour: &Behaviour, options: &Options) -> Result<(Vec<Value>, Value), ApiError> {
    let Answer::Whole { body, .. } = super::answer(body, behaviour, options)? else {
        return Ok((Vec::new(), Value::Null));
    };
    let mut answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    let tokens = answer.pointer_mut("/usage/prompt_tokens").map(Value::take).unwrap_or_default();
    let data = answer.get_mut("data").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
    let vector = |mut item: Value| item.get_mut("embedding").map(Value::take).unwrap_or_default();
    Ok((data.into_iter().map(vector).collect(), tokens))
}
