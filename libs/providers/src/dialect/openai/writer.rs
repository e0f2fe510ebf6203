//! Answers of other dialects as Chat completions.
//!
//! What a model thought is told as `reasoning_content`, the member that most servers and clients have for it. Where its
//! provider signs thoughts and wants them back (Anthropic), they are told a second time in `reasoning_details`, the
//! form of OpenRouter's API: items `{"type":"reasoning.text","text","signature","index"}` and
//! `{"type":"reasoning.encrypted","data","index"}`. A client that sends an assistant's message back as it got it so
//! sends back all that the provider needs; the reader of requests takes signatures from there, by the mark of their
//! signer. A thought over 1 MiB is told without its signature. Gemini's signature of a call is where Gemini's own
//! OpenAI-compatible API has it: `extra_content.google.thought_signature` of the call.

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value, json};

use super::chunk::Head;
use super::failure;
use crate::hub::{Event, Finish, Part, Told, Whole, Writer};
use crate::json::literal;
use crate::usage::Usage;

/// More than any model thinks before it does something else.
const MAX_SIGNED_BYTES: usize = 1024 * 1024;

/// How one client's answer is written.
#[derive(Clone, Debug)]
pub(crate) struct ChatForm {
    /// The model name the client asked for.
    pub(crate) model: String,
    /// When the answer began, in seconds since 1970.
    pub(crate) created_s: i64,
    /// Whether the client asked for usage in the stream.
    pub(crate) usage: bool,
    /// Whether calls are told in the old form, of which an answer has one at most.
    pub(crate) functions: bool,
}

/// Writes one answer.
#[derive(Debug)]
pub(crate) struct ChatWriter {
    form: ChatForm,
    id: Option<String>,
    thought: Thought,
    details: u64,
    /// The index of each call as its provider counts, and whether it has arguments. Clients count calls from zero.
    calls: Vec<(u64, bool)>,
    usage: Option<Usage>,
    finished: bool,
}

/// The thought that is being told, for its signature.
#[derive(Debug, Default)]
struct Thought {
    text: String,
    signature: String,
    is_too_long: bool,
}

impl ChatWriter {
    pub(crate) fn new(form: ChatForm) -> Self {
        Self {
            form,
            id: None,
            thought: Thought::default(),
            details: 0,
            calls: Vec::new(),
            usage: None,
            finished: false,
        }
    }

    fn head(&self) -> Head<'_> {
        Head::new(self.id.as_deref(), Some(self.form.created_s), &self.form.model)
    }

    fn start(&mut self, id: Option<&str>, out: &mut BytesMut) {
        if self.id.is_some() {
            return;
        }
        self.id = Some(answer_id(id));
        self.delta(r#"{"role":"assistant","content":"","refusal":null}"#, out);
    }

    fn delta(&self, delta: &str, out: &mut BytesMut) {
        out.extend_from_slice(&self.head().delta(delta, None, self.form.usage));
    }

    /// A delta of one text.
    fn text(&self, name: &str, text: &str, out: &mut BytesMut) {
        if !text.is_empty() {
            self.delta(&format!("{{\"{name}\":{}}}", literal(text)), out);
        }
    }

    /// Tells the signature of a thought that has ended.
    fn end_thought(&mut self, out: &mut BytesMut) {
        let Thought { text, signature, is_too_long } = std::mem::take(&mut self.thought);
        if !signature.is_empty() && !is_too_long {
            self.detail(signed(&text, &signature), out);
        }
    }

    fn detail(&mut self, mut detail: Value, out: &mut BytesMut) {
        if let Some(members) = detail.as_object_mut() {
            members.insert("index".to_owned(), self.details.into());
        }
        self.details += 1;
        self.delta(&json!({ "reasoning_details": [detail] }).to_string(), out);
    }

    fn call(&mut self, index: u64, id: &str, name: &str, signature: Option<&str>, out: &mut BytesMut) {
        let place = self.calls.len();
        self.calls.push((index, false));
        if !self.form.functions {
            let mut call = call(id, name, "", signature);
            call.insert("index".to_owned(), place.into());
            self.delta(&json!({ "tool_calls": [call] }).to_string(), out);
        } else if place == 0 {
            self.delta(&json!({ "function_call": { "name": name, "arguments": "" } }).to_string(), out);
        }
    }

    fn arguments(&mut self, index: u64, text: &str, out: &mut BytesMut) {
        let Some(place) = self.calls.iter().rposition(|(of, _)| *of == index).filter(|_| !text.is_empty()) else {
            return;
        };
        if let Some((_, has_arguments)) = self.calls.get_mut(place) {
            *has_arguments = true;
        }
        let text = literal(text);
        if !self.form.functions {
            let delta = format!("{{\"tool_calls\":[{{\"index\":{place},\"function\":{{\"arguments\":{text}}}}}]}}");
            self.delta(&delta, out);
        } else if place == 0 {
            self.delta(&format!("{{\"function_call\":{{\"arguments\":{text}}}}}"), out);
        }
    }

    fn finish(&mut self, finish: &Finish, out: &mut BytesMut) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        if *finish == Finish::ToolCalls {
            // Clients read arguments as JSON, which nothing is not.
            let without: Vec<u64> = self.calls.iter().filter(|(_, some)| !some).map(|(index, _)| *index).collect();
            for index in without {
                self.arguments(index, "{}", out);
            }
        }
        let reason = reason(finish, self.form.functions);
        out.extend_from_slice(&self.head().delta("{}", Some(reason), self.form.usage));
    }
}

impl Writer for ChatWriter {
    fn write(&mut self, event: &Event<'_>, out: &mut BytesMut) {
        match event {
            Event::Start { id, .. } => self.start(id.as_deref(), out),
            Event::Usage(usage) => self.usage = Some(*usage),
            _ => {
                self.start(None, out);
                self.say(event, out);
            }
        }
    }

    fn end(&mut self, member: Option<(&str, &str)>, out: &mut BytesMut) {
        self.start(None, out);
        self.end_thought(out);
        self.finish(&Finish::Stop, out);
        if let Some(usage) = self.usage.filter(|_| self.form.usage) {
            out.extend_from_slice(&self.head().reported(&usage_of(&usage).to_string()));
        }
        if let Some((name, value)) = member {
            out.extend_from_slice(&self.head().member(name, value));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut) {
        out.extend_from_slice(&failure(told));
    }

    fn whole(&self, answer: &Whole, member: Option<(&str, &str)>) -> Bytes {
        let message = message(&answer.parts, self.form.functions);
        let finish = answer.finish.as_ref().unwrap_or(&Finish::Stop);
        let mut body = json!({
            "id": answer_id(answer.id.as_deref()),
            "object": "chat.completion",
            "created": self.form.created_s,
            "model": self.form.model,
            "choices": [{
                "index": 0,
                "message": message,
                "logprobs": null,
                "finish_reason": reason(finish, self.form.functions),
            }],
        });
        if let (Some(body), Some(usage)) = (body.as_object_mut(), &answer.usage) {
            body.insert("usage".to_owned(), usage_of(usage));
        }
        let mut text = body.to_string();
        if let Some((name, value)) = member {
            text.truncate(text.len().saturating_sub(1));
            text.push_str(&format!(",{}:{value}}}", literal(name)));
        }
        Bytes::from(text)
    }
}

impl ChatWriter {
    /// What an answer has begun with already.
    fn say(&mut self, event: &Event<'_>, out: &mut BytesMut) {
        match event {
            Event::Reasoning(text) => {
                if !self.thought.signature.is_empty() {
                    self.end_thought(out);
                }
                self.thought.add(text);
                self.text("reasoning_content", text, out);
                return;
            }
            Event::ReasoningSignature(piece) => return self.thought.signature.push_str(piece),
            _ => self.end_thought(out),
        }
        match event {
            Event::RedactedReasoning(data) => self.detail(encrypted(data), out),
            Event::Text(text) => self.text("content", text, out),
            Event::Refusal(text) => self.text("refusal", text, out),
            Event::ToolCall { index, id, name, signature } => self.call(*index, id, name, signature.as_deref(), out),
            Event::Arguments { index, json } => self.arguments(*index, json, out),
            Event::Finish(finish) => self.finish(finish, out),
            Event::Start { .. }
            | Event::Usage(_)
            | Event::Reasoning(_)
            | Event::ReasoningSignature(_)
            | Event::NextThought => {}
        }
    }
}

impl Thought {
    fn add(&mut self, text: &str) {
        if self.text.len() + text.len() > MAX_SIGNED_BYTES {
            self.is_too_long = true;
            self.text = String::new();
        }
        if !self.is_too_long {
            self.text.push_str(text);
        }
    }
}

/// The provider's id, marked as ours are; a new one where it gives none.
fn answer_id(given: Option<&str>) -> String {
    const MARK: &str = "chatcmpl-";
    match given.filter(|id| !id.is_empty()) {
        Some(id) if id.starts_with(MARK) => id.to_owned(),
        Some(id) => format!("{MARK}{id}"),
        None => format!("{MARK}{:032x}", rand::random::<u128>()),
    }
}

fn reason(finish: &Finish, functions: bool) -> &'static str {
    if functions && *finish == Finish::ToolCalls { "function_call" } else { finish.as_openai() }
}

fn signed(text: &str, signature: &str) -> Value {
    json!({ "type": "reasoning.text", "text": text, "signature": signature })
}

fn encrypted(data: &str) -> Value {
    json!({ "type": "reasoning.encrypted", "data": data })
}

fn call(id: &str, name: &str, arguments: &str, signature: Option<&str>) -> Map<String, Value> {
    let mut call = Map::from_iter([
        ("id".to_owned(), id.into()),
        ("type".to_owned(), "function".into()),
        ("function".to_owned(), json!({ "name": name, "arguments": arguments })),
    ]);
    if let Some(signature) = signature {
        call.insert("extra_content".to_owned(), json!({ "google": { "thought_signature": signature } }));
    }
    call
}

fn message(parts: &[Part], functions: bool) -> Value {
    let (mut content, mut refusal, mut thoughts) = (None::<String>, None::<String>, None::<String>);
    let (mut details, mut calls) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(text) => content.get_or_insert_default().push_str(text),
            Part::Refusal(text) => refusal.get_or_insert_default().push_str(text),
            Part::Reasoning { text, signature } => {
                if !text.is_empty() {
                    thoughts.get_or_insert_default().push_str(text);
                }
                if let Some(signature) = signature.as_deref().filter(|_| text.len() <= MAX_SIGNED_BYTES) {
                    details.push(signed(text, signature));
                }
            }
            Part::RedactedReasoning(data) => details.push(encrypted(data)),
            Part::ToolCall { id, name, arguments, signature } => {
                let arguments = if arguments.is_empty() { "{}" } else { arguments };
                calls.push(call(id, name, arguments, signature.as_deref()));
            }
        }
    }
    if content.is_none() && refusal.is_none() && calls.is_empty() {
        content = Some(String::new());
    }
    let mut message = json!({ "role": "assistant", "content": content, "refusal": refusal });
    let Some(members) = message.as_object_mut() else { return message };
    if let Some(thoughts) = thoughts {
        members.insert("reasoning_content".to_owned(), thoughts.into());
    }
    if !details.is_empty() {
        for (index, detail) in (0_u64..).zip(&mut details) {
            if let Some(detail) = detail.as_object_mut() {
                detail.insert("index".to_owned(), index.into());
            }
        }
        members.insert("reasoning_details".to_owned(), details.into());
    }
    match calls.first_mut().and_then(|call| call.remove("function")) {
        None => {}
        Some(function) if functions => {
            members.insert("function_call".to_owned(), function);
        }
        Some(function) => {
            if let Some(call) = calls.first_mut() {
                call.insert("function".to_owned(), function);
            }
            members.insert("tool_calls".to_owned(), calls.into_iter().map(Value::Object).collect());
        }
    }
    message
}

/// Details are told where there is something to tell: that a provider has none is not known here.
fn usage_of(usage: &Usage) -> Value {
    let mut told = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens.saturating_add(usage.completion_tokens),
    });
    let Some(members) = told.as_object_mut() else { return told };
    if usage.cached_tokens > 0 || usage.cache_write_tokens > 0 {
        let mut details = Map::from_iter([("cached_tokens".to_owned(), usage.cached_tokens.into())]);
        if usage.cache_write_tokens > 0 {
            details.insert("cache_creation_tokens".to_owned(), usage.cache_write_tokens.into());
        }
        members.insert("prompt_tokens_details".to_owned(), details.into());
    }
    if usage.reasoning_tokens > 0 {
        members.insert("completion_tokens_details".to_owned(), json!({ "reasoning_tokens": usage.reasoning_tokens }));
    }
    told
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
