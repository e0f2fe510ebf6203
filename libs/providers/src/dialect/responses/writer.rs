//! Answers of other dialects as Responses.
//!
//! Items come one after the other, but for calls of tools: a call stays open until its arguments are whole, beside the
//! calls that begin before.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use super::echo::Echo;
use super::error::told_error;
use super::event::{Head, Status, event, own_event};
use super::items::{self, answer_id, item_id};
use crate::hub::{Event, Finish, Part, Told, Whole, Writer};
use crate::json::{Members, literal};
use crate::usage::Usage;

/// What is being told.
#[derive(Debug)]
enum Item {
    Thought { text: String, signature: String },
    Message { parts: Vec<Value>, is_refusal: bool, text: String },
    Call { index: u64, call_id: String, name: String, arguments: String, signature: Option<String> },
}

/// An item that has begun and not ended.
#[derive(Debug)]
struct Open {
    place: usize,
    id: String,
    item: Item,
    /// What the item has of texts.
    bytes: usize,
}

/// Writes one answer.
#[derive(Debug)]
pub(crate) struct ResponseWriter {
    model: String,
    created_s: i64,
    echo: Arc<Echo>,
    id: Option<String>,
    /// The number of the next event.
    number: u64,
    open: Vec<Open>,
    /// The items that have begun; those that have ended as JSON.
    items: Vec<Option<String>>,
    /// What both have of texts.
    kept_bytes: usize,
    finish: Option<Finish>,
    usage: Option<Usage>,
}

impl ResponseWriter {
    /// A writer for one answer, which shows that model. `created_s` is its time in seconds since 1970.
    pub(crate) fn new(model: String, created_s: i64, echo: Arc<Echo>) -> Self {
        Self {
            model,
            created_s,
            echo,
            id: None,
            number: 0,
            open: Vec::new(),
            items: Vec::new(),
            kept_bytes: 0,
            finish: None,
            usage: None,
        }
    }

    fn head<'a>(&'a self, id: &'a str) -> Head<'a> {
        Head { id, created_s: self.created_s, model: &self.model, echo: &self.echo }
    }

    fn event(&mut self, kind: &str, more: &str, out: &mut BytesMut) {
        event(kind, self.number, more, out);
        self.number += 1;
    }

    fn start(&mut self, id: Option<&str>, out: &mut BytesMut) {
        if self.id.is_some() {
            return;
        }
        let id = answer_id(id);
        let more = format!(",\"response\":{}", self.head(&id).response(Status::InProgress, "", None));
        self.id = Some(id);
        self.event("response.created", &more, out);
        self.event("response.in_progress", &more, out);
    }

    /// An event about an open item, the one that was opened last or the one at a place among the open.
    fn about(&mut self, at: usize, kind: &str, more: &str, out: &mut BytesMut) {
        if let Some(open) = self.open.get(at) {
            let more = format!(",\"item_id\":{},\"output_index\":{}{more}", literal(&open.id), open.place);
            self.event(kind, &more, out);
        }
    }

    fn about_last(&mut self, kind: &str, more: &str, out: &mut BytesMut) {
        self.about(self.open.len().saturating_sub(1), kind, more, out);
    }

    /// Begins an item. `kind` begins its id; `told` makes what is told of it at first.
    fn begin(&mut self, kind: &str, item: Item, told: impl FnOnce(&str) -> Value, out: &mut BytesMut) {
        let place = self.items.len();
        let id = item_id(kind, self.id.as_deref().unwrap_or_default(), place);
        let more = format!(",\"output_index\":{place},\"item\":{}", told(&id));
        self.items.push(None);
        // What is told of it at first is about what it has beside its texts.
        self.kept_bytes += more.len();
        self.open.push(Open { place, id, item, bytes: more.len() });
        self.event("response.output_item.added", &more, out);
    }

    /// Counts a text that the open item at a place was given.
    fn keeps(&mut self, at: usize, bytes: usize) {
        if let Some(open) = self.open.get_mut(at) {
            open.bytes += bytes;
            self.kept_bytes += bytes;
        }
    }

    fn last_keeps(&mut self, bytes: usize) {
        self.keeps(self.open.len().saturating_sub(1), bytes);
    }

    /// Ends an open item.
    fn close(&mut self, at: usize, status: Status, out: &mut BytesMut) {
        self.close_texts(at, out);
        if at >= self.open.len() {
            return;
        }
        let Open { place, id, item, bytes } = self.open.remove(at);
        let status = status.as_str();
        let told = match &item {
            Item::Thought { text, signature } => {
                items::reasoning(&id, text, Some(signature.as_str()).filter(|signature| !signature.is_empty()))
            }
            Item::Message { parts, .. } => items::message(&id, status, parts),
            Item::Call { call_id, name, arguments, signature, .. } => {
                items::call(&id, status, (call_id, name, arguments), signature.as_deref())
            }
        };
        let told = told.to_string();
        self.event("response.output_item.done", &format!(",\"output_index\":{place},\"item\":{told}"), out);
        self.kept_bytes = self.kept_bytes.saturating_sub(bytes) + told.len();
        if let Some(kept) = self.items.get_mut(place) {
            *kept = Some(told);
        }
    }

    /// Ends the texts of an open item.
    fn close_texts(&mut self, at: usize, out: &mut BytesMut) {
        match self.open.get_mut(at).map(|open| &mut open.item) {
            Some(Item::Thought { text, .. }) if !text.is_empty() => {
                let (done, part) = (literal(text), items::summary_part(text));
                let done = format!(",\"summary_index\":0,\"text\":{done}");
                self.about(at, "response.reasoning_summary_text.done", &done, out);
                let part = format!(",\"summary_index\":0,\"part\":{part}");
                self.about(at, "response.reasoning_summary_part.done", &part, out);
            }
            Some(Item::Message { parts, is_refusal, text }) if !text.is_empty() => {
                let (place, text, is_refusal) = (parts.len(), std::mem::take(text), *is_refusal);
                let part = items::part(is_refusal, &text);
                parts.push(part.clone());
                let text = literal(&text);
                if is_refusal {
                    let done = format!(",\"content_index\":{place},\"refusal\":{text}");
                    self.about(at, "response.refusal.done", &done, out);
                } else {
                    let done = format!(",\"content_index\":{place},\"text\":{text},\"logprobs\":[]");
                    self.about(at, "response.output_text.done", &done, out);
                }
                let part = format!(",\"content_index\":{place},\"part\":{part}");
                self.about(at, "response.content_part.done", &part, out);
            }
            Some(Item::Call { name, arguments, .. }) => {
                let done = format!(",\"name\":{},\"arguments\":{}", literal(name), literal(arguments));
                self.about(at, "response.function_call_arguments.done", &done, out);
            }
            Some(Item::Thought { .. } | Item::Message { .. }) | None => {}
        }
    }

    fn close_all(&mut self, out: &mut BytesMut) {
        while !self.open.is_empty() {
            self.close(0, Status::Completed, out);
        }
    }

    fn say(&mut self, refuses: bool, said: &str, out: &mut BytesMut) {
        if said.is_empty() {
            return;
        }
        if !matches!(self.open.last(), Some(Open { item: Item::Message { .. }, .. })) {
            self.close_whole(out);
            let item = Item::Message { parts: Vec::new(), is_refusal: refuses, text: String::new() };
            self.begin("msg", item, |id| items::message(id, Status::InProgress.as_str(), &[]), out);
        }
        let last = self.open.len().saturating_sub(1);
        if let Some(Open { item: Item::Message { is_refusal, text, .. }, .. }) = self.open.last()
            && *is_refusal != refuses
            && !text.is_empty()
        {
            self.close_texts(last, out);
        }
        let Some(Open { item: Item::Message { parts, is_refusal, text }, .. }) = self.open.last_mut() else { return };
        let (place, begins) = (parts.len(), text.is_empty());
        *is_refusal = refuses;
        text.push_str(said);
        self.last_keeps(said.len());
        if begins {
            let part = format!(",\"content_index\":{place},\"part\":{}", items::part(refuses, ""));
            self.about_last("response.content_part.added", &part, out);
        }
        let delta = format!(",\"content_index\":{place},\"delta\":{}", literal(said));
        if refuses {
            self.about_last("response.refusal.delta", &delta, out);
        } else {
            self.about_last("response.output_text.delta", &format!("{delta},\"logprobs\":[]"), out);
        }
    }

    fn begin_thought(&mut self, out: &mut BytesMut) {
        self.close_whole(out);
        let item = Item::Thought { text: String::new(), signature: String::new() };
        self.begin("rs", item, |id| items::reasoning(id, "", None), out);
    }

    fn think(&mut self, thought: &str, out: &mut BytesMut) {
        if thought.is_empty() {
            return;
        }
        if !matches!(self.open.last(), Some(Open { item: Item::Thought { signature, .. }, .. }) if signature.is_empty())
        {
            self.begin_thought(out);
        }
        let Some(Open { item: Item::Thought { text, .. }, .. }) = self.open.last_mut() else { return };
        let begins = text.is_empty();
        text.push_str(thought);
        self.last_keeps(thought.len());
        if begins {
            let part = format!(",\"summary_index\":0,\"part\":{}", items::summary_part(""));
            self.about_last("response.reasoning_summary_part.added", &part, out);
        }
        let delta = format!(",\"summary_index\":0,\"delta\":{}", literal(thought));
        self.about_last("response.reasoning_summary_text.delta", &delta, out);
    }

    fn sign(&mut self, piece: &str, out: &mut BytesMut) {
        if !matches!(self.open.last(), Some(Open { item: Item::Thought { .. }, .. })) {
            self.begin_thought(out);
        }
        if let Some(Open { item: Item::Thought { signature, .. }, .. }) = self.open.last_mut() {
            signature.push_str(piece);
            self.last_keeps(piece.len());
        }
    }

    fn redact(&mut self, data: &str, out: &mut BytesMut) {
        self.close_whole(out);
        let place = self.items.len();
        let id = item_id("rs", self.id.as_deref().unwrap_or_default(), place);
        let told = items::redacted(&id, data).to_string();
        let more = format!(",\"output_index\":{place},\"item\":{told}");
        self.event("response.output_item.added", &more, out);
        self.event("response.output_item.done", &more, out);
        self.kept_bytes += told.len();
        self.items.push(Some(told));
    }

    /// Ends what is not a call, and calls whose arguments are whole.
    fn close_whole(&mut self, out: &mut BytesMut) {
        let is_whole = |open: &Open| match &open.item {
            Item::Call { arguments, .. } => Members::parse(arguments).is_ok(),
            Item::Thought { .. } | Item::Message { .. } => true,
        };
        while let Some(at) = self.open.iter().position(is_whole) {
            self.close(at, Status::Completed, out);
        }
    }

    fn call(&mut self, index: u64, call_id: &str, name: &str, signature: Option<&str>, out: &mut BytesMut) {
        self.close_whole(out);
        let item = Item::Call {
            index,
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments: String::new(),
            signature: signature.map(str::to_owned),
        };
        let status = Status::InProgress.as_str();
        self.begin("fc", item, |id| items::call(id, status, (call_id, name, ""), signature), out);
    }

    fn arguments(&mut self, of: u64, json: &str, out: &mut BytesMut) {
        let is_of = |open: &Open| matches!(&open.item, Item::Call { index, .. } if *index == of);
        // Of a call that has ended, or never began, there is nobody to tell.
        let Some(at) = self.open.iter().rposition(is_of).filter(|_| !json.is_empty()) else { return };
        if let Some(Open { item: Item::Call { arguments, .. }, .. }) = self.open.get_mut(at) {
            arguments.push_str(json);
        }
        self.keeps(at, json.len());
        let delta = format!(",\"delta\":{}", literal(json));
        self.about(at, "response.function_call_arguments.delta", &delta, out);
    }

    /// All items that have ended.
    fn output(&self) -> String {
        self.items.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(",")
    }
}

impl Writer for ResponseWriter {
    fn write(&mut self, event: &Event<'_>, out: &mut BytesMut) {
        self.start(if let Event::Start { id, .. } = event { id.as_deref() } else { None }, out);
        match event {
            Event::Start { .. } => {}
            Event::Text(text) => self.say(false, text, out),
            Event::Refusal(text) => self.say(true, text, out),
            Event::Reasoning(text) => self.think(text, out),
            Event::ReasoningSignature(piece) => self.sign(piece, out),
            Event::NextThought => {
                if let Some(Open { item: Item::Thought { .. }, .. }) = self.open.last() {
                    self.close(self.open.len().saturating_sub(1), Status::Completed, out);
                }
            }
            Event::RedactedReasoning(data) => self.redact(data, out),
            Event::ToolCall { index, id, name, signature } => self.call(*index, id, name, signature.as_deref(), out),
            Event::Arguments { index, json } => self.arguments(*index, json, out),
            Event::Usage(usage) => self.usage = Some(*usage),
            Event::Finish(finish) => {
                // What was being said when it ended before its end is not whole either.
                while self.open.len() > 1 {
                    self.close(0, Status::Completed, out);
                }
                self.close(0, Status::of(Some(finish)), out);
                self.finish = Some(finish.clone());
            }
        }
    }

    fn kept(&self) -> usize {
        self.kept_bytes
    }

    fn end(&mut self, member: Option<(&str, &str)>, out: &mut BytesMut) {
        self.start(None, out);
        self.close_all(out);
        if let Some((name, value)) = member {
            own_event(name, value, out);
        }
        let status = Status::of(self.finish.as_ref());
        let kind = format!("response.{}", status.as_str());
        let id = self.id.clone().unwrap_or_default();
        let more = format!(",\"response\":{}", self.head(&id).response(status, &self.output(), self.usage));
        self.event(&kind, &more, out);
    }

    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut) {
        let id = answer_id(self.id.as_deref());
        let response = self.head(&id).failed(&told_error(told), &self.output(), self.usage);
        self.event("response.failed", &format!(",\"response\":{response}"), out);
    }

    fn whole(&self, answer: &Whole, member: Option<(&str, &str)>) -> Bytes {
        let id = answer_id(answer.id.as_deref());
        let status = Status::of(answer.finish.as_ref());
        let output: Vec<String> = whole_items(&id, answer, status).iter().map(Value::to_string).collect();
        let mut text = self.head(&id).response(status, &output.join(","), answer.usage);
        if let Some((name, value)) = member {
            text.pop();
            text.push_str(&format!(",{}:{value}}}", literal(name)));
        }
        Bytes::from(text)
    }
}

/// The items of a whole answer; texts and refusals that follow one another are of one message.
fn whole_items(answer_id: &str, answer: &Whole, ended: Status) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::with_capacity(answer.parts.len());
    let mut said: Vec<Value> = Vec::new();
    for (at, part) in answer.parts.iter().enumerate() {
        let next = answer.parts.get(at + 1);
        let status = if next.is_none() { ended } else { Status::Completed }.as_str();
        let id = |kind| item_id(kind, answer_id, items.len());
        let item = match part {
            Part::Text(text) => {
                said.push(items::part(false, text));
                continue_message(next, &mut said).map(|parts| items::message(&id("msg"), status, &parts))
            }
            Part::Refusal(text) => {
                said.push(items::part(true, text));
                continue_message(next, &mut said).map(|parts| items::message(&id("msg"), status, &parts))
            }
            Part::Reasoning { text, signature } => Some(items::reasoning(&id("rs"), text, signature.as_deref())),
            Part::RedactedReasoning(data) => Some(items::redacted(&id("rs"), data)),
            Part::ToolCall { id: call_id, name, arguments, signature } => {
                Some(items::call(&id("fc"), status, (call_id, name, arguments), signature.as_deref()))
            }
        };
        items.extend(item);
    }
    items
}

/// The parts of a message, unless it goes on.
fn continue_message(next: Option<&Part>, said: &mut Vec<Value>) -> Option<Vec<Value>> {
    (!matches!(next, Some(Part::Text(_) | Part::Refusal(_)))).then(|| std::mem::take(said))
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
