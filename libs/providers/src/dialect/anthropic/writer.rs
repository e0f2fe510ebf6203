//! Answers of other dialects as messages.
//!
//! Blocks come one after the other, each closed before the next begins, which is what clients of this API are used to.
//! Where a provider tells something else before the input of a call is whole, that waits until it is: a closed block takes
//! no more.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::error::failure;
use super::usage::told;
use crate::hub::{Event, Finish, Part, Told, Whole, Writer, input_object};
use crate::json::literal;
use crate::sse::MAX_EVENT_BYTES;
use crate::usage::Usage;

/// The block that is open.
#[derive(Debug)]
enum Open {
    Text,
    Thought {
        /// All of it: clients take a second piece for the whole.
        signature: String,
    },
    Call {
        index: u64,
        input: Input,
    },
}

/// A call of a tool.
#[derive(Debug)]
struct Call {
    /// Its index as the provider counts.
    index: u64,
    id: String,
    name: String,
    /// What has come of its arguments while it waits.
    arguments: String,
    /// The provider's mark on the thought that led to the call.
    signature: Option<String>,
}

/// How far the input of a call has come, told by its brackets.
#[derive(Debug, Default)]
struct Input {
    depth: u64,
    in_string: bool,
    is_escaped: bool,
    is_whole: bool,
}

impl Input {
    fn take(&mut self, json: &str) {
        for byte in json.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_whole |= self.depth == 0;
                }
                _ => {}
            }
        }
    }
}

/// What waits for the open call.
#[derive(Debug)]
enum Held {
    Text(String),
    Thought(String),
    Signature(String),
    NextThought,
    Redacted(String),
    Call(Call),
}

/// Writes one answer.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    model: String,
    started: bool,
    /// The index of the next block.
    next: u64,
    open: Option<Open>,
    /// What came while a call was open whose input is not whole.
    held: VecDeque<Held>,
    /// Memory that was needed for all that has been held since nothing was.
    held_bytes: usize,
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
            held: VecDeque::new(),
            held_bytes: 0,
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
        while let Some(held) = self.held.pop_front() {
            self.tell(held, out);
        }
        self.held_bytes = 0;
        self.close(out);
    }

    /// Whether a call is open whose input is not whole.
    fn is_waiting(&self) -> bool {
        matches!(&self.open, Some(Open::Call { input, .. }) if !input.is_whole)
    }

    fn hold(&mut self, held: Held) {
        /// What is held takes memory beside its text.
        const EACH: usize = size_of::<Held>();
        let text = match (&held, self.held.back_mut()) {
            (Held::Text(text), Some(Held::Text(last)))
            | (Held::Thought(text), Some(Held::Thought(last)))
            | (Held::Signature(text), Some(Held::Signature(last))) => {
                last.push_str(text);
                self.held_bytes += text.len();
                return;
            }
            (Held::Text(text) | Held::Thought(text) | Held::Signature(text) | Held::Redacted(text), _) => text.len(),
            (Held::NextThought, _) => 0,
            (Held::Call(call), _) => call.id.len() + call.name.len() + call.signature.as_ref().map_or(0, String::len),
        };
        self.held_bytes += EACH + text;
        self.held.push_back(held);
    }

    /// Tells what waited, as if it came now.
    fn tell(&mut self, held: Held, out: &mut BytesMut) {
        match held {
            Held::Text(text) => self.text(&text, out),
            Held::Thought(text) => self.think(&text, out),
            Held::Signature(piece) => self.sign(&piece, out),
            Held::NextThought if matches!(self.open, Some(Open::Thought { .. })) => self.close(out),
            Held::NextThought => {}
            Held::Redacted(data) => self.redact(&data, out),
            Held::Call(call) => self.call(call, out),
        }
    }

    /// Goes on with what waits if the open call has all of its input.
    fn go_on(&mut self, out: &mut BytesMut) {
        while !self.is_waiting()
            && let Some(held) = self.held.pop_front()
        {
            self.tell(held, out);
        }
        if self.held.is_empty() {
            self.held_bytes = 0;
        }
    }

    /// Tells what has come, or holds it.
    fn take(&mut self, held: Held, out: &mut BytesMut) {
        if self.is_waiting() { self.hold(held) } else { self.tell(held, out) }
    }

    fn call(&mut self, mut call: Call, out: &mut BytesMut) {
        if let Some(Open::Thought { signature }) = &mut self.open
            && signature.is_empty()
        {
            *signature = call.signature.take().unwrap_or_default();
        }
        self.close(out);
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
        self.open = Some(Open::Call { index: call.index, input: Input::default() });
        self.input(&call.arguments, out);
    }

    /// Tells a piece of the open call's input.
    fn input(&mut self, json: &str, out: &mut BytesMut) {
        if let Some(Open::Call { input, .. }) = &mut self.open
            && !json.is_empty()
        {
            input.take(json);
            self.delta("input_json_delta", "partial_json", json, out);
        }
    }

    fn arguments(&mut self, of: u64, json: &str, out: &mut BytesMut) {
        let held = self.held.iter_mut().rev().find_map(|held| match held {
            Held::Call(call) if call.index == of => Some(call),
            _ => None,
        });
        if let Some(call) = held {
            call.arguments.push_str(json);
            self.held_bytes += json.len();
            return;
        }
        // Of a call that is closed, or never began, there is nobody to tell.
        if matches!(&self.open, Some(Open::Call { index, .. }) if *index == of) {
            self.input(json, out);
            self.go_on(out);
        }
    }

    fn text(&mut self, text: &str, out: &mut BytesMut) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Open::Text)) {
            self.close(out);
            self.block(r#"{"type":"text","text":""}"#, out);
            self.open = Some(Open::Text);
        }
        self.delta("text_delta", "text", text, out);
    }

    fn thought(&mut self, out: &mut BytesMut) {
        self.block(r#"{"type":"thinking","thinking":"","signature":""}"#, out);
        self.open = Some(Open::Thought { signature: String::new() });
    }

    fn think(&mut self, text: &str, out: &mut BytesMut) {
        if text.is_empty() {
            return;
        }
        if !matches!(&self.open, Some(Open::Thought { signature }) if signature.is_empty()) {
            self.close(out);
            self.thought(out);
        }
        self.delta("thinking_delta", "thinking", text, out);
    }

    fn sign(&mut self, piece: &str, out: &mut BytesMut) {
        if !matches!(self.open, Some(Open::Thought { .. })) {
            self.close(out);
            self.thought(out);
        }
        if let Some(Open::Thought { signature }) = &mut self.open {
            signature.push_str(piece);
        }
    }

    fn redact(&mut self, data: &str, out: &mut BytesMut) {
        self.close(out);
        self.block(&format!("{{\"type\":\"redacted_thinking\",\"data\":{}}}", literal(data)), out);
        self.block_end(out);
    }
}

impl Writer for MessageWriter {
    fn write(&mut self, event: &Event<'_>, out: &mut BytesMut) {
        self.start(if let Event::Start { id, .. } = event { id.as_deref() } else { None }, out);
        match event {
            Event::Start { .. } => {}
            Event::Text(text) if self.is_waiting() => self.hold(Held::Text(text.as_ref().to_owned())),
            Event::Text(text) => self.text(text, out),
            Event::Refusal(text) => {
                self.ending.refused = true;
                self.take(Held::Text(text.as_ref().to_owned()), out);
            }
            Event::Reasoning(text) if self.is_waiting() => self.hold(Held::Thought(text.as_ref().to_owned())),
            Event::Reasoning(text) => self.think(text, out),
            Event::ReasoningSignature(piece) => self.take(Held::Signature(piece.as_ref().to_owned()), out),
            Event::NextThought => self.take(Held::NextThought, out),
            Event::RedactedReasoning(data) => self.take(Held::Redacted(data.as_ref().to_owned()), out),
            Event::ToolCall { index, id, name, signature } => {
                self.ending.calls = true;
                let (id, name) = (id.clone().into_owned(), name.clone().into_owned());
                let signature = signature.as_deref().map(str::to_owned);
                self.take(Held::Call(Call { index: *index, id, name, arguments: String::new(), signature }), out);
            }
            Event::Arguments { index, json } => self.arguments(*index, json, out),
            Event::Usage(usage) => self.usage = Some(*usage),
            Event::Finish(finish) => {
                self.close_all(out);
                self.ending.finish = Some(finish.clone());
            }
        }
    }

    fn kept(&self) -> usize {
        self.held_bytes
    }

    fn is_overfull(&self) -> bool {
        self.held_bytes > MAX_EVENT_BYTES
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
