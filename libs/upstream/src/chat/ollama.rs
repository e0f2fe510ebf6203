//! `POST /api/chat` (Ollama API, Generate a chat message).

use serde_json::{Value, json};

use super::request::ChatRequest;
use super::{Reply, reply};
use crate::{
    Options,
    answer::Answer,
    error::ApiError,
    script::{Behaviour, ReportUsage},
};

/// Answers a request; `id` makes the answer's id.
pub(crate) fn answer(body: &Value, id: u64, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let request = parse(body)?;
    let mut reply = reply(&request, id, behaviour, options)?;
    reply.usage = reply.usage.filter(|_| behaviour.usage != ReportUsage::Never);
    // What does not say otherwise is a stream.
    if body.get("stream") == Some(&Value::Bool(false)) {
        return Ok(Answer::json(&last(&reply, &reply.pieces.concat())));
    }
    let mut lines: Vec<Value> = reply.pieces.iter().map(|text| line(&reply, text)).collect();
    if !behaviour.omit_done {
        lines.push(last(&reply, ""));
    }
    Ok(Answer::Lines(lines.iter().map(|line| format!("{line}\n").into_bytes()).collect()))
}

/// An error in the shape of this API.
pub(crate) fn error(message: &Value) -> Value {
    json!({ "error": message })
}

/// The request in the terms of the other API.
fn parse(body: &Value) -> Result<ChatRequest, ApiError> {
    let mut chat = json!({ "model": body.get("model"), "messages": body.get("messages") });
    let limit = body.pointer("/options/num_predict").filter(|limit| limit.as_u64().is_some());
    if let (Some(chat), Some(limit)) = (chat.as_object_mut(), limit) {
        chat.insert("max_tokens".to_owned(), limit.clone());
    }
    ChatRequest::parse(&chat)
}

fn line(reply: &Reply, text: &str) -> Value {
    json!({
        "model": reply.model, "created_at": "2026-01-01T00:00:00Z",
        "message": { "role": "assistant", "content": text }, "done": false,
    })
}

fn last(reply: &Reply, text: &str) -> Value {
    let mut line = line(reply, text);
    let Some(members) = line.as_object_mut() else { return line };
    members.insert("done".to_owned(), true.into());
    members.insert("done_reason".to_owned(), reply.finish_reason.as_str().into());
    if let Some(figures) = reply.usage {
        members.insert("prompt_eval_count".to_owned(), figures.prompt_tokens.into());
        members.insert("eval_count".to_owned(), figures.completion_tokens.into());
    }
    line
}
