//! Answers of other dialects as messages.
//!
//! Blocks come one after the other, each closed before the next begins, which is what clients of this API are used to.
//! Where a provider tells several calls side by side, those behind the first wait until its input is whole.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::error::failure;
use super::usage::told;
use crate::hub::{Event, Finish, Part, Told, Whole, Writer, input_object};
use crate::json::{Members, literal};
use crate::usage::Usage;

/// The block that is open.
#[derive(Debug)]
enum Open {
    Text,
    Thought {
        /// All of it: clients take a second piece for the whole.
        signature: String,
    },
    Call(Call),
}

/// A call of a tool.
#[derive(Debug)]
struct Call {
    /// Its index as the provider counts.
    index: u64,
    id: String,
    name: String,
    arguments: String,
    /// The provider's mark on the thought that led to the call.
    signature: Option<String>,
}

/// Writes one answer.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    model: String,
    started: bool,
    /// The index of the next block.
    next: u64,
    open: Option<Open>,
    /// Calls that began while another one was open.
    waiting: VecDeque<Call>,
    ending: Ending,
    usage: Option<Usage>,
}

/// What decides the reason that an answer ends with.
#[derive(Debug, Default)]
struct Ending {
    finish: Option<Finish>,
    calls: bool,
    refused: bool,
}

impl Ending {
    /// `stop_reason` and `stop_sequence`.
    fn reason(&self) -> (&'static str, Option<&str>) {
        match &self.finish {
            Some(Finish::Length) => ("max_tokens", None),
            Some(Finish::ContentFilter) => ("refusal", None),
            Some(Finish::StopSequence(sequence)) => ("stop_sequence", sequence.as_deref()),
            _ if self.refused => ("refusal", None),
            // Some providers say "stop" where they wait for results; clients of this API go by the reason.
            _ if self.calls => ("tool_use", None),
            Some(Finish::Stop | Finish::ToolCalls) | None => ("end_turn", None),
        }
    }
}

impl MessageWriter {
    /// A writer for one answer, which shows that model.
    pub(crate) fn new(model: String) -> Self {
        Self {
            model,
            started: false,
            next: 0,
            open: None,
            waiting: VecDeque::new(),
            ending: Ending::default(),
            usage: None,
        }
    }

    fn start(&mut self, id: Option<&str>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        // The protocol needs usage here, of which nothing is known yet. What `message_delta` tells replaces it.
        let message = json!({
            "id": message_id(id), "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 0, "output_tokens": 0 },
        });
        event("message_start", &format!(",\"message\":{message}"), out);
    }

    fn block(&mut self, block: &str, out: &mut BytesMut) {
        event("content_block_start", &format!(",\"index\":{},\"content_block\":{block}", self.next), out);
        self.next += 1;
    }

    fn delta(&self, kind: &str, member: &str, text: &str, out: &mut BytesMut) {
        let index = self.next.saturating_sub(1);
        let delta = format!("{{\"type\":\"{kind}\",\"{member}\":{}}}", literal(text));
        event("content_block_delta", &format!(",\"index\":{index},\"delta\":{delta}"), out);
    }

    /// Closes what is open.
    fn close(&mut self, out: &mut BytesMut) {
        let Some(open) = self.open.take() else { return };
        if let Open::Thought { signature } = &open
            && !signature.is_empty()
        {
            self.delta("signature_delta", "signature", signature, out);
        }
        self.block_end(out);
    }

    fn block_end(&self, out: &mut BytesMut) {
        event("content_block_stop", &format!(",\"index\":{}", self.next.saturating_sub(1)), out);
    }

    /// Closes what is open and tells all that waits for it.
    fn close_all(&mut self, out: &mut BytesMut) {
        self.close(out);
        while let Some(call) = self.waiting.pop_front() {
            self.open_call(call, out);
            self.close(out);
        }
    }

    fn open_call(&mut self, mut call: Call, out: &mut BytesMut) {
        if let Some(signature) = call.signature.take() {
            // A call has no place for it here; an empty thought before the call has, and comes back with the next request.
            self.thought(out);
            self.open = Some(Open::Thought { signature });
            self.close(out);
        }
        let block = format!(
            "{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{{}}}}",
            literal(&call.id),
            literal(&call.name)
        );
        self.block(&block, out);
        if !call.arguments.is_empty() {
            self.delta("input_json_delta", "partial_json", &call.arguments, out);
        }
        self.open = Some(Open::Call(call));
    }

    /// Goes on to the next call if the open one has all of its input.
    fn next_call(&mut self, out: &mut BytesMut) {
        while let Some(Open::Call(call)) = &self.open
            && Members::parse(&call.arguments).is_ok()
            && let Some(next) = self.waiting.pop_front()
        {
            self.close(out);
            self.open_call(next, out);
        }
    }

    fn call(&mut self, mut call: Call, out: &mut BytesMut) {
        self.ending.calls = true;
        match &mut self.open {
            Some(Open::Thought { signature }) if signature.is_empty() => {
                *signature = call.signature.take().unwrap_or_default();
                self.close(out);
                self.open_call(call, out);
            }
            Some(Open::Call(_)) => {
                self.waiting.push_back(call);
                self.next_call(out);
            }
            _ => {
                self.close(out);
                self.open_call(call, out);
            }
        }
    }

    fn arguments(&mut self, index: u64, json: &str, out: &mut BytesMut) {
        if json.is_empty() {
            return;
        }
        if let Some(call) = self.waiting.iter_mut().rev().find(|call| call.index == index) {
            call.arguments.push_str(json);
            return;
        }
        match &mut self.open {
            Some(Open::Call(call)) if call.index == index => call.arguments.push_str(json),
            // Of a call that is closed, or never began.
            _ => return,
        }
        self.delta("input_json_delta", "partial_json", json, out);
        self.next_call(out);
    }

    fn text(&mut self, text: &str, out: &mut BytesMut) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Open::Text)) {
            self.close_all(out);
            self.block(r#"{"type":"text","text":""}"#, out);
            self.open = Some(Open::Text);
        }
        self.delta("text_delta", "text", text, out);
    }

    fn thought(&mut self, out: &mut BytesMut) {
        self.block(r#"{"type":"thinking","thinking":"","signature":""}"#, out);
        self.open = Some(Open::Thought { signature: String::new() });
    }
}

impl Writer for MessageWriter {
    fn write(&mut self, event: &Event<'_>, out: &mut BytesMut) {
        self.start(if let Event::Start { id, .. } = event { id.as_deref() } else { None }, out);
        match event {
            Event::Start { .. } => {}
            Event::Text(text) => self.text(text, out),
            Event::Refusal(text) => {
                self.ending.refused = true;
                self.text(text, out);
            }
            Event::Reasoning(text) if text.is_empty() => {}
            Event::Reasoning(text) => {
                if !matches!(&self.open, Some(Open::Thought { signature }) if signature.is_empty()) {
                    self.close_all(out);
                    self.thought(out);
                }
                self.delta("thinking_delta", "thinking", text, out);
            }
            Event::ReasoningSignature(piece) => {
                if !matches!(self.open, Some(Open::Thought { .. })) {
                    self.close_all(out);
                    self.thought(out);
                }
                if let Some(Open::Thought { signature }) = &mut self.open {
                    signature.push_str(piece);
                }
            }
            Event::RedactedReasoning(data) => {
                self.close_all(out);
                self.block(&format!("{{\"type\":\"redacted_thinking\",\"data\":{}}}", literal(data)), out);
                self.block_end(out);
            }
            Event::ToolCall { index, id, name, signature } => {
                let (id, name) = (id.clone().into_owned(), name.clone().into_owned());
                let signature = signature.as_deref().map(str::to_owned);
                self.call(Call { index: *index, id, name, arguments: String::new(), signature }, out);
            }
            Event::Arguments { index, json } => self.arguments(*index, json, out),
            Event::Usage(usage) => self.usage = Some(*usage),
            Event::Finish(finish) => {
                self.close_all(out);
                self.ending.finish = Some(finish.clone());
            }
        }
    }

    fn end(&mut self, member: Option<(&str, &str)>, out: &mut BytesMut) {
        self.start(None, out);
        self.close_all(out);
        let (reason, sequence) = self.ending.reason();
        ended(reason, sequence, self.usage, member, out);
    }

    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut) {
        out.extend_from_slice(&failure(told));
    }

    fn whole(&self, answer: &Whole, member: Option<(&str, &str)>) -> Bytes {
        let ending = Ending {
            finish: answer.finish.clone(),
            calls: answer.parts.iter().any(|part| matches!(part, Part::ToolCall { .. })),
            refused: answer.parts.iter().any(|part| matches!(part, Part::Refusal(_))),
        };
        let (reason, sequence) = ending.reason();
        let content: Vec<String> = answer.parts.iter().map(part).collect();
        // Inputs stand as the model wrote them, so the text is put together here.
        let mut text = format!(
            "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[{}],\"stop_reason\":\"{reason}\",\
             \"stop_sequence\":{},\"usage\":{}",
            literal(&message_id(answer.id.as_deref())),
            literal(&self.model),
            content.join(","),
            json!(sequence),
            told(answer.usage.unwrap_or_default()),
        );
        if let Some((name, value)) = member {
            text.push_str(&format!(",{}:{value}", literal(name)));
        }
        text.push('}');
        Bytes::from(text)
    }
}

/// One part of a whole answer as a block, or as two.
fn part(part: &Part) -> String {
    let block: Value = match part {
        Part::Text(text) | Part::Refusal(text) => json!({ "type": "text", "text": text }),
        Part::Reasoning { text, signature } => {
            json!({ "type": "thinking", "thinking": text, "signature": signature.as_deref().unwrap_or_default() })
        }
        Part::RedactedReasoning(data) => json!({ "type": "redacted_thinking", "data": data }),
        Part::ToolCall { id, name, arguments, signature } => {
            let input = input_object(arguments);
            let thought = signature.as_deref().map(|signature| {
                format!("{{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":{}}},", literal(signature))
            });
            return format!(
                "{}{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{}}}",
                thought.unwrap_or_default(),
                literal(id),
                literal(name),
                RawValue::get(&input)
            );
        }
    };
    block.to_string()
}

/// The end of a whole answer: its reason and usage, a member of ours in an event of its own, and the last event.
pub(super) fn ended(
    reason: &str,
    sequence: Option<&str>,
    usage: Option<Usage>,
    member: Option<(&str, &str)>,
    out: &mut BytesMut,
) {
    let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
    // The protocol needs a figure.
    let usage = usage.map_or_else(|| json!({ "output_tokens": 0 }), told);
    event("message_delta", &format!(",\"delta\":{delta},\"usage\":{usage}"), out);
    if let Some((name, value)) = member {
        own_event(name, value, out);
    }
    event("message_stop", "", out);
}

/// An event of ours, by the name of its member. `value` must be JSON.
pub(super) fn own_event(name: &str, value: &str, out: &mut BytesMut) {
    event(name, &format!(",{}:{value}", literal(name)), out);
}

/// An event. `more` follows its type.
pub(super) fn event(kind: &str, more: &str, out: &mut BytesMut) {
    out.extend_from_slice(format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{more}}}\n\n").as_bytes());
}

/// The provider's id, marked as this API's are; a new one where it gives none.
fn message_id(given: Option<&str>) -> String {
    const MARK: &str = "msg_";
    match given.filter(|id| !id.is_empty()) {
        Some(id) if id.starts_with(MARK) => id.to_owned(),
        Some(id) => format!("{MARK}{id}"),
        None => format!("{MARK}{:032x}", rand::random::<u128>()),
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
