//! `POST /v1/responses` (OpenAI API reference, Responses).

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
pub(crate) fn answer(body: &Value, id: u64, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let request = parse(body)?;
    let mut reply = reply(&request, id, behaviour, options)?;
    reply.id = format!("resp_{id:024x}");
    reply.usage = reply.usage.filter(|_| behaviour.usage != ReportUsage::Never);
    let response = Response { body, reply: &reply, message: format!("msg_{id:024x}") };
    Ok(if request.stream { response.events(!behaviour.omit_done) } else { Answer::json(&response.ended()) })
}

/// The request in the terms of the other API.
fn parse(body: &Value) -> Result<ChatRequest, ApiError> {
    let mut messages: Vec<Value> = match body.get("input") {
        Some(Value::String(text)) => vec![json!({ "role": "user", "content": text })],
        Some(Value::Array(items)) => items.iter().filter(|item| item.get("role").is_some()).cloned().collect(),
        _ => return Err(ApiError::invalid("input", "Missing required parameter: 'input'.")),
    };
    if let Some(Value::String(text)) = body.get("instructions") {
        messages.insert(0, json!({ "role": "system", "content": text }));
    }
    let mut chat = json!({ "model": body.get("model"), "stream": body.get("stream"), "messages": messages });
    if let (Some(chat), Some(limit)) = (chat.as_object_mut(), body.get("max_output_tokens")) {
        chat.insert("max_completion_tokens".to_owned(), limit.clone());
    }
    ChatRequest::parse(&chat)
}

/// What the answer is made of.
struct Response<'a> {
    body: &'a Value,
    reply: &'a Reply,
    message: String,
}

impl Response<'_> {
    fn told(&self, status: &str, output: Value, usage: Value) -> Value {
        let given = |name: &str, absent: Value| self.body.get(name).cloned().unwrap_or(absent);
        let details = if status == "incomplete" { json!({ "reason": "max_output_tokens" }) } else { Value::Null };
        json!({
            "id": self.reply.id, "object": "response", "created_at": self.reply.created, "status": status,
            "background": false, "error": null, "incomplete_details": details, "model": self.reply.model,
            "instructions": given("instructions", Value::Null), "max_output_tokens": given("max_output_tokens", Value::Null),
            "metadata": given("metadata", json!({})), "parallel_tool_calls": true, "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null }, "store": given("store", json!(true)),
            "temperature": given("temperature", json!(1.0)), "text": given("text", json!({ "format": { "type": "text" } })),
            "tool_choice": given("tool_choice", json!("auto")), "tools": given("tools", json!([])), "top_p": 1.0,
            "truncation": "disabled", "user": null, "output": output, "usage": usage,
        })
    }

    fn part(text: &str) -> Value {
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
    }

    fn item(&self, status: &str, content: Value) -> Value {
        json!({ "id": self.message, "type": "message", "status": status, "role": "assistant", "content": content })
    }

    fn whole_item(&self) -> Value {
        self.item("completed", json!([Self::part(&self.reply.pieces.concat())]))
    }

    fn is_cut(&self) -> bool {
        self.reply.finish_reason == "length"
    }

    fn ended(&self) -> Value {
        let status = if self.is_cut() { "incomplete" } else { "completed" };
        self.told(status, json!([self.whole_item()]), self.reply.usage.map_or(Value::Null, usage))
    }

    /// Events: the answer as it begins, a message of one part in pieces, the answer as it is.
    fn events(&self, done: bool) -> Answer {
        let begun = self.told("in_progress", json!([]), Value::Null);
        let text = self.reply.pieces.concat();
        let about = |kind: &str, more: Value| {
            let mut event = json!({ "type": kind, "item_id": self.message, "output_index": 0, "content_index": 0 });
            if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
                event.extend(more);
            }
            event
        };
        let mut events = vec![
            json!({ "type": "response.created", "response": begun }),
            json!({ "type": "response.in_progress", "response": begun }),
            json!({ "type": "response.output_item.added", "output_index": 0, "item": self.item("in_progress", json!([])) }),
            about("response.content_part.added", json!({ "part": Self::part("") })),
        ];
        events.extend(
            self.reply
                .pieces
                .iter()
                .map(|piece| about("response.output_text.delta", json!({ "delta": piece, "logprobs": [] }))),
        );
        events.extend([
            about("response.output_text.done", json!({ "text": text, "logprobs": [] })),
            about("response.content_part.done", json!({ "part": Self::part(&text) })),
            json!({ "type": "response.output_item.done", "output_index": 0, "item": self.whole_item() }),
        ]);
        if done {
            let kind = if self.is_cut() { "response.incomplete" } else { "response.completed" };
            events.push(json!({ "type": kind, "response": self.ended() }));
        }
        let line = |(number, mut event): (usize, Value)| {
            if let Some(event) = event.as_object_mut() {
                event.insert("sequence_number".to_owned(), number.into());
            }
            let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
            format!("event: {kind}\ndata: {event}\n\n").into_bytes()
        };
        Answer::Events(events.into_iter().enumerate().map(line).collect())
    }
}

fn usage(figures: Figures) -> Value {
    json!({
        "input_tokens": figures.prompt_tokens,
        "input_tokens_details": { "cached_tokens": figures.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": figures.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": figures.reasoning_tokens },
        "total_tokens": figures.prompt_tokens.saturating_add(figures.completion_tokens),
    })
}
