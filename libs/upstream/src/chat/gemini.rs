//! `POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent` (Gemini API reference, Generating content).

use hyper::StatusCode;
use serde_json::{Value, json};

use super::request::ChatRequest;
use super::{Reply, reply};
use crate::{
    Options,
    answer::Answer,
    error::ApiError,
    script::{Behaviour, Figures, ReportUsage},
};

/// Answers a request; `id` makes the answer's id.
pub(crate) fn answer(
    model: &str,
    is_streamed: bool,
    body: &Value,
    id: u64,
    behaviour: &Behaviour,
    options: &Options,
) -> Result<Answer, ApiError> {
    let request = parse(model, body)?;
    let mut reply = reply(&request, id, behaviour, options)?;
    reply.id = format!("gen-{id:024x}");
    if behaviour.finish_reason.is_none() {
        reply.finish_reason = if reply.finish_reason == "length" { "MAX_TOKENS" } else { "STOP" }.to_owned();
    }
    let usage = reply.usage.filter(|_| behaviour.usage != ReportUsage::Never);
    Ok(if is_streamed {
        events(&reply, usage, !behaviour.omit_done)
    } else {
        let text = reply.pieces.concat();
        Answer::json(&chunk(&reply, &text, Some(&reply.finish_reason), usage))
    })
}

/// An error in the shape of this API (google.rpc.Status).
pub(crate) fn error(status: StatusCode, message: &Value, code: Option<&str>, retry_after: Option<&str>) -> Value {
    let word = code.unwrap_or(match status.as_u16() {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    });
    let details = retry_after.filter(|after| after.parse::<u64>().is_ok()).map(
        |after| json!([{ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{after}s") }]),
    );
    let details = details.unwrap_or_else(|| json!([]));
    json!({ "error": { "code": status.as_u16(), "message": message, "status": word, "details": details } })
}

/// The request in the terms of the other API.
fn parse(model: &str, body: &Value) -> Result<ChatRequest, ApiError> {
    let parts = |content: &Value| -> Value {
        let parts = content.get("parts").and_then(Value::as_array).cloned().unwrap_or_default();
        parts.into_iter().filter(|part| part.get("text").is_some()).collect()
    };
    let mut messages: Vec<Value> =
        body.get("systemInstruction").iter().map(|rules| message("system", parts(rules))).collect();
    for content in body.get("contents").and_then(Value::as_array).into_iter().flatten() {
        let role = if content.get("role").and_then(Value::as_str) == Some("model") { "assistant" } else { "user" };
        messages.push(message(role, parts(content)));
    }
    let config = |name: &str| body.pointer(&format!("/generationConfig/{name}"));
    let mut chat = json!({ "model": model, "messages": messages });
    if let (Some(chat), Some(limit)) = (chat.as_object_mut(), config("maxOutputTokens")) {
        chat.insert("max_tokens".to_owned(), limit.clone());
    }
    ChatRequest::parse(&chat)
}

fn message(role: &str, content: Value) -> Value {
    json!({ "role": role, "content": content })
}

fn chunk(reply: &Reply, text: &str, reason: Option<&str>, usage: Option<Figures>) -> Value {
    let mut candidate = json!({ "content": { "parts": [{ "text": text }], "role": "model" }, "index": 0 });
    if let (Some(candidate), Some(reason)) = (candidate.as_object_mut(), reason) {
        candidate.insert("finishReason".to_owned(), reason.into());
    }
    let mut chunk = json!({ "candidates": [candidate], "modelVersion": reply.model, "responseId": reply.id });
    if let (Some(chunk), Some(figures)) = (chunk.as_object_mut(), usage) {
        let answer = figures.completion_tokens.saturating_sub(figures.reasoning_tokens);
        let usage = json!({
            "promptTokenCount": figures.prompt_tokens, "cachedContentTokenCount": figures.cached_tokens,
            "candidatesTokenCount": answer, "thoughtsTokenCount": figures.reasoning_tokens,
            "totalTokenCount": figures.prompt_tokens.saturating_add(figures.completion_tokens),
        });
        chunk.insert("usageMetadata".to_owned(), usage);
    }
    chunk
}

/// A piece of the text each, and a last one with the reason and usage.
fn events(reply: &Reply, usage: Option<Figures>, done: bool) -> Answer {
    let mut chunks: Vec<Value> = reply.pieces.iter().map(|text| chunk(reply, text, None, None)).collect();
    if done {
        chunks.push(chunk(reply, "", Some(&reply.finish_reason), usage));
    }
    Answer::Events(chunks.iter().map(|chunk| format!("data: {chunk}\n\n").into_bytes()).collect())
}
