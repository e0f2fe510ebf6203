//! `POST /v1/moderations` (OpenAI API reference, Moderations). What says `violence` is violent.

use serde_json::{Value, json};

use crate::{answer::Answer, error::ApiError};

/// Answers a request; `id` makes the answer's id.
pub(crate) fn answer(body: &Value, id: u64) -> Result<Answer, ApiError> {
    let model = body.get("model").and_then(Value::as_str).unwrap_or("omni-moderation-latest");
    let input = body.get("input").ok_or_else(|| ApiError::invalid("input", "You must provide an input."))?;
    // The parts of one input are judged together.
    let inputs = match input.as_array() {
        Some(list) if list.iter().all(Value::is_string) => list.iter().map(Value::to_string).collect(),
        _ => vec![input.to_string()],
    };
    let results = inputs.iter().map(|text| {
        let flagged = text.contains("violence");
        let score = if flagged { 0.98 } else { 0.01 };
        json!({ "flagged": flagged, "categories": { "violence": flagged }, "category_scores": { "violence": score } })
    });
    let results: Vec<Value> = results.collect();
    Ok(Answer::json(&json!({ "id": format!("modr-{id:024x}"), "model": model, "results": results })))
}
