//! `POST /v1/completions` (OpenAI API reference, Completions): what is to go on is taken for a question.

use serde_json::{Value, json};

use super::request::ChatRequest;
use super::{Reply, reply};
use crate::{
    Options,
    answer::Answer,
    error::ApiError,
    script::{Behaviour, ReportUsage},
};

/// What a request without `max_tokens` gets.
const DEFAULT_LIMIT: u64 = 16;

/// Answers a request; `id` makes the answer's id.
pub(crate) fn answer(body: &Value, id: u64, behaviour: &Behaviour, options: &Options) -> Result<Answer, ApiError> {
    let prompts = prompts(body.get("prompt").unwrap_or(&Value::Null))?;
    // Whoever wants the prompt repeated may want nothing more.
    let limit = body.get("max_tokens").and_then(Value::as_u64).unwrap_or(DEFAULT_LIMIT);
    let mut chat = json!({ "model": body.get("model"), "max_tokens": limit.max(1) });
    for name in ["n", "stop", "stream", "stream_options"] {
        if let Some(value) = body.get(name) {
            put(&mut chat, name, value.clone());
        }
    }
    let echo = body.get("echo") == Some(&Value::Bool(true));
    let (mut answers, mut all) = (Vec::new(), None);
    for prompt in &prompts {
        put(&mut chat, "messages", json!([{ "role": "user", "content": prompt }]));
        let request = ChatRequest::parse(&chat)?;
        let mut reply = reply(&request, id, behaviour, options)?;
        if limit == 0 {
            reply.pieces.clear();
        }
        if echo {
            reply.pieces.insert(0, prompt.clone());
        }
        for _ in 0..request.choices {
            answers.push(reply.pieces.clone());
        }
        all.get_or_insert((request, reply));
    }
    let (request, mut reply) = all.ok_or_else(|| ApiError::invalid("prompt", "The prompt is empty."))?;
    let report = match behaviour.usage {
        ReportUsage::AsAsked => !request.stream || request.include_usage,
        ReportUsage::Always => true,
        ReportUsage::Never => false,
    };
    reply.usage = reply.usage.filter(|_| report);
    Ok(if request.stream { events(&reply, &answers, !behaviour.omit_done) } else { whole(&reply, &answers) })
}

fn put(body: &mut Value, name: &str, value: Value) {
    if let Some(members) = body.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
}

/// One text for each thing that is to go on. What numbers of tokens say is not known here.
fn prompts(prompt: &Value) -> Result<Vec<String>, ApiError> {
    let numbers = |list: &[Value]| list.iter().all(Value::is_u64).then(|| format!("{} tokens", list.len()));
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => numbers(list),
        _ => None,
    };
    let all = match prompt {
        Value::Array(list) if list.first().is_some_and(Value::is_u64) => numbers(list).map(|text| vec![text]),
        Value::Array(list) => list.iter().map(one).collect(),
        value => one(value).map(|text| vec![text]),
    };
    all.ok_or_else(|| ApiError::invalid("prompt", "Invalid type for 'prompt'."))
}

fn body(reply: &Reply, choices: &[Value], usage: Option<&Value>) -> Value {
    let mut body = json!({
        "id": reply.id.replace("chatcmpl", "cmpl"), "object": "text_completion", "created": reply.created,
        "model": reply.model, "choices": choices,
    });
    if let Some(usage) = usage {
        put(&mut body, "usage", usage.clone());
    }
    body
}

fn choice(index: usize, text: &str, finish_reason: Option<&str>) -> Value {
    json!({ "text": text, "index": index, "logprobs": null, "finish_reason": finish_reason })
}

fn usage(reply: &Reply) -> Option<Value> {
    let figures = reply.usage?;
    let (prompt, completion) = (figures.prompt_tokens, figures.completion_tokens);
    let total = prompt.saturating_add(completion);
    Some(json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total }))
}

fn whole(reply: &Reply, answers: &[Vec<String>]) -> Answer {
    let choices =
        answers.iter().enumerate().map(|(at, pieces)| choice(at, &pieces.concat(), Some(&reply.finish_reason)));
    Answer::json(&body(reply, &choices.collect::<Vec<_>>(), usage(reply).as_ref()))
}

/// Events: the pieces, the reason, usage if asked for, the end.
fn events(reply: &Reply, answers: &[Vec<String>], done: bool) -> Answer {
    let usage = usage(reply);
    let none = usage.as_ref().map(|_| Value::Null);
    let event = |body: Value| format!("data: {body}\n\n").into_bytes();
    let chunk = |choice: Value| event(body(reply, &[choice], none.as_ref()));
    let mut events = Vec::new();
    for at in 0..answers.iter().map(Vec::len).max().unwrap_or(0) {
        let pieces = answers.iter().enumerate().filter_map(|(index, pieces)| Some((index, pieces.get(at)?)));
        events.extend(pieces.map(|(index, text)| chunk(choice(index, text, None))));
    }
    events.extend((0..answers.len()).map(|index| chunk(choice(index, "", Some(&reply.finish_reason)))));
    if usage.is_some() {
        events.push(event(body(reply, &[], usage.as_ref())));
    }
    if done {
        events.push(b"data: [DONE]\n\n".to_vec());
    }
    Answer::Events(events)
}
