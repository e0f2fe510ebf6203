//! `POST /v1/messages` and `POST /v1/messages/count_tokens` (Anthropic API reference, Messages).

use hyper::StatusCode;
use serde_json::{Value, json};
use tokens::Family;

use super::request::{ChatRequest, Message};
use super::{Reply, counted_prompt, reply};
use crate::{
    Options,
    answer::Answer,
    error::ApiError,
    script::{Behaviour, Figures, ReportUsage},
};

/// Answers a request; `id` makes the answer's id.
pub(crate) fn answer(body: &Value, id: u64, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let request = parse(body)?;
    if request.output_limit.is_none() {
        return Err(ApiError::invalid("max_tokens", "max_tokens: Field required"));
    }
    let mut reply = reply(&request, id, behaviour, options)?;
    reply.id = format!("msg_{id:024x}");
    if behaviour.finish_reason.is_none() {
        let reason = if reply.finish_reason == "length" { "max_tokens" } else { "end_turn" };
        reply.finish_reason = reason.to_owned();
    }
    let usage = reply.usage.filter(|_| behaviour.usage != ReportUsage::Never);
    Ok(if request.stream { events(&reply, usage, !behaviour.omit_done) } else { whole(&reply, usage) })
}

/// Counts the prompt.
pub(crate) fn count(body: &Value) -> Result<Answer, ApiError> {
    let request = parse(body)?;
    Ok(Answer::json(&json!({ "input_tokens": counted_prompt(&request, Family::of(&request.model)) })))
}

/// An error in the shape of this API. A type that the script gives is kept.
pub(crate) fn error(status: StatusCode, message: &Value, given: Option<&str>) -> Value {
    let kind = given.unwrap_or(match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    });
    let error = json!({ "type": kind, "message": message });
    json!({ "type": "error", "error": error, "request_id": "req_scripted" })
}

/// The request in the terms of the other API.
fn parse(body: &Value) -> Result<ChatRequest, ApiError> {
    let mut chat = body.clone();
    if let Some(chat) = chat.as_object_mut() {
        chat.remove("n");
        if let Some(stop) = chat.remove("stop_sequences") {
            chat.insert("stop".to_owned(), stop);
        }
    }
    let mut request = ChatRequest::parse(&chat)?;
    let system = match body.get("system") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => {
            blocks.iter().filter_map(|block| block.get("text").and_then(Value::as_str)).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    if !system.is_empty() {
        request.messages.insert(0, Message { role: "system".to_owned(), text: system });
    }
    Ok(request)
}

fn input(figures: Figures) -> Value {
    json!({
        "input_tokens": figures.prompt_tokens.saturating_sub(figures.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": figures.cached_tokens,
        "output_tokens": figures.completion_tokens.min(1),
    })
}

fn message(reply: &Reply, content: Value, reason: Option<&str>, usage: Option<Value>) -> Value {
    let mut message = json!({
        "id": reply.id, "type": "message", "role": "assistant", "model": reply.model, "content": content,
        "stop_reason": reason, "stop_sequence": null,
    });
    if let (Some(members), Some(usage)) = (message.as_object_mut(), usage) {
        members.insert("usage".to_owned(), usage);
    }
    message
}

fn whole(reply: &Reply, usage: Option<Figures>) -> Answer {
    let usage = usage.map(|figures| {
        let mut usage = input(figures);
        if let Some(members) = usage.as_object_mut() {
            members.insert("output_tokens".to_owned(), figures.completion_tokens.into());
        }
        usage
    });
    let content = json!([{ "type": "text", "text": reply.pieces.concat() }]);
    Answer::json(&message(reply, content, Some(&reply.finish_reason), usage))
}

/// Events: the message, a block of text in pieces, the reason with usage, the end.
fn events(reply: &Reply, usage: Option<Figures>, done: bool) -> Answer {
    let start = message(reply, json!([]), None, usage.map(input));
    let mut events = vec![
        json!({ "type": "message_start", "message": start }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "ping" }),
    ];
    events.extend(reply.pieces.iter().map(
        |text| json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } }),
    ));
    events.push(json!({ "type": "content_block_stop", "index": 0 }));
    let mut end = json!({
        "type": "message_delta", "delta": { "stop_reason": reply.finish_reason, "stop_sequence": null },
    });
    if let (Some(members), Some(figures)) = (end.as_object_mut(), usage) {
        members.insert("usage".to_owned(), json!({ "output_tokens": figures.completion_tokens }));
    }
    events.push(end);
    if done {
        events.push(json!({ "type": "message_stop" }));
    }
    let line = |event: &Value| {
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        format!("event: {kind}\ndata: {event}\n\n").into_bytes()
    };
    Answer::Events(events.iter().map(line).collect())
}
