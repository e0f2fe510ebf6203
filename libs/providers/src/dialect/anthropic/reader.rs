//! Answers, streamed and whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use domain::Secret;
use serde_json::value::RawValue;

use super::error::in_stream;
use super::usage::Reported;
use crate::error::UpstreamError;
use crate::hub::{Event, Finish, Reader, Signer, Whole};
use crate::json::{Members, elements, object, said_in, text_of};
use crate::usage::Usage;

/// A call whose block is open.
#[derive(Debug)]
struct OpenCall {
    /// Its place among the calls.
    index: u64,
    /// The input that its block began with, until a piece of the real one comes.
    input: Option<String>,
}

/// Reads the events of a stream.
#[derive(Debug)]
pub(crate) struct MessageReader {
    credential: Option<Secret>,
    usage: Reported,
    usage_told: bool,
    calls: u64,
    /// The open calls by the index of their block.
    open: BTreeMap<u64, OpenCall>,
    /// Whether a piece of the open block's signature has come.
    signing: bool,
    finished: bool,
    over: bool,
}

impl MessageReader {
    /// A reader for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(credential: Option<Secret>) -> Self {
        Self {
            credential,
            usage: Reported::default(),
            usage_told: false,
            calls: 0,
            open: BTreeMap::new(),
            signing: false,
            finished: false,
            over: false,
        }
    }

    fn start<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let message = object_of(event, "message");
        let text = |name| message.as_ref().and_then(|message| message.present(name)).and_then(text_of);
        events.push(Event::Start { id: text("id"), model: text("model") });
        if let Some(usage) = message.as_ref().and_then(|message| message.present("usage")) {
            // Not told as an event yet: the output is only begun.
            self.usage.read(usage);
        }
    }

    fn block_start<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let Some(block) = object_of(event, "content_block") else { return };
        self.signing = false;
        let text = |name| block.present(name).and_then(said_in).filter(|text: &Cow<'_, str>| !text.is_empty());
        match block.present("type").and_then(text_of).as_deref() {
            Some("text") => events.extend(text("text").map(Event::Text)),
            Some("thinking") => {
                events.push(Event::NextThought);
                events.extend(text("thinking").map(Event::Reasoning));
                events.extend(text("signature").map(|piece| self.signature(piece)));
            }
            Some("redacted_thinking") => events.extend(text("data").map(redacted)),
            Some("tool_use") => {
                let index = self.calls;
                self.calls += 1;
                let input = block.present("input").map_or("{}", RawValue::get).to_owned();
                self.open.insert(index_of(event), OpenCall { index, input: Some(input) });
                events.push(Event::ToolCall {
                    index,
                    id: text("id").unwrap_or_default(),
                    name: text("name").unwrap_or_default(),
                    signature: None,
                });
            }
            // Tools of the provider's own, which no translated request has asked for.
            _ => {}
        }
    }

    fn block_delta<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let Some(delta) = object_of(event, "delta") else { return };
        let text = |name| delta.present(name).and_then(said_in).filter(|text: &Cow<'_, str>| !text.is_empty());
        match delta.present("type").and_then(text_of).as_deref() {
            Some("text_delta") => events.extend(text("text").map(Event::Text)),
            Some("thinking_delta") => events.extend(text("thinking").map(Event::Reasoning)),
            Some("signature_delta") => events.extend(text("signature").map(|piece| self.signature(piece))),
            Some("input_json_delta") => {
                if let (Some(call), Some(json)) = (self.open.get_mut(&index_of(event)), text("partial_json")) {
                    call.input = None;
                    events.push(Event::Arguments { index: call.index, json });
                }
            }
            _ => {}
        }
    }

    /// A signature is marked where it begins.
    fn signature<'a>(&mut self, piece: Cow<'a, str>) -> Event<'a> {
        let goes_on = std::mem::replace(&mut self.signing, true);
        Event::ReasoningSignature(if goes_on { piece } else { Signer::Anthropic.signed(piece) })
    }

    /// Tells the input of a call that came in one piece with its beginning.
    fn close(&mut self, block: u64, events: &mut Vec<Event<'_>>) {
        if let Some(OpenCall { index, input: Some(input) }) = self.open.remove(&block) {
            events.push(Event::Arguments { index, json: input.into() });
        }
    }

    fn message_delta(&mut self, event: &Members<'_>, events: &mut Vec<Event<'_>>) {
        if let Some(usage) = event.present("usage") {
            self.usage.read_last(usage);
        }
        if let Some(finish) = object_of(event, "delta").and_then(|delta| finish(&delta)) {
            for block in self.open.keys().copied().collect::<Vec<_>>() {
                self.close(block, events);
            }
            self.finished = true;
            events.push(Event::Finish(finish));
        }
        self.tell_usage(events);
    }

    fn tell_usage(&mut self, events: &mut Vec<Event<'_>>) {
        if let Some(usage) = self.usage.usage() {
            self.usage_told = true;
            events.push(Event::Usage(usage));
        }
    }
}

impl Reader for MessageReader {
    fn read<'a>(
        &mut self,
        name: Option<&str>,
        data: &'a [u8],
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), UpstreamError> {
        let (_, event) = object(data).map_err(|_| UpstreamError::BadAnswer("an event is not a JSON object"))?;
        // The name repeats the type; servers that imitate the API may give only one of them.
        let kind = event.present("type").and_then(text_of).or_else(|| name.map(|name| Cow::Owned(name.to_owned())));
        match kind.as_deref().unwrap_or_default() {
            "message_start" => self.start(&event, events),
            "content_block_start" => self.block_start(&event, events),
            "content_block_delta" => self.block_delta(&event, events),
            "content_block_stop" => self.close(index_of(&event), events),
            "message_delta" => self.message_delta(&event, events),
            "message_stop" => {
                if !self.usage_told {
                    self.tell_usage(events);
                }
                self.over = true;
            }
            "error" => return Err(error(&event, self.credential.as_ref().map(Secret::expose))),
            // Of `ping` and whatever the API will have one day nobody depends.
            _ => {}
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.finished || self.over
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn usage_so_far(&self) -> Option<Usage> {
        self.usage.usage().filter(Usage::is_possible)
    }
}

/// Reads an answer that came in one piece.
pub(crate) fn read_whole(body: &Bytes, credential: Option<&str>) -> Result<Whole, UpstreamError> {
    let (_, message) = object(body).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    if message.present("error").is_some() {
        return Err(error(&message, credential));
    }
    let blocks = message
        .present("content")
        .and_then(|value| elements(value.get()).ok())
        .ok_or(UpstreamError::BadAnswer("it has no content"))?;
    let text = |name| message.present(name).and_then(text_of);
    let mut events = vec![Event::Start { id: text("id"), model: text("model") }];
    let mut calls = 0;
    for block in blocks {
        let Ok(block) = Members::parse(block.get()) else { continue };
        whole_block(&block, &mut calls, &mut events);
    }
    let mut usage = Reported::default();
    if let Some(value) = message.present("usage") {
        usage.read_last(value);
    }
    events.extend(usage.usage().map(Event::Usage));
    events.extend(finish(&message).map(Event::Finish));
    Ok(Whole::of(events))
}

fn whole_block<'a>(block: &Members<'a>, calls: &mut u64, events: &mut Vec<Event<'a>>) {
    let text = |name| block.present(name).and_then(said_in).filter(|text: &Cow<'_, str>| !text.is_empty());
    match text("type").as_deref() {
        Some("text") => events.extend(text("text").map(Event::Text)),
        Some("thinking") => {
            events.extend(text("thinking").map(Event::Reasoning));
            let signature = text("signature").map(|signature| Signer::Anthropic.signed(signature));
            events.extend(signature.map(Event::ReasoningSignature));
        }
        Some("redacted_thinking") => events.extend(text("data").map(redacted)),
        Some("tool_use") => {
            let index = *calls;
            *calls += 1;
            let (id, name) = (text("id").unwrap_or_default(), text("name").unwrap_or_default());
            events.push(Event::ToolCall { index, id, name, signature: None });
            let json = block.present("input").map_or("{}", RawValue::get);
            events.push(Event::Arguments { index, json: json.into() });
        }
        _ => {}
    }
}

fn redacted(data: Cow<'_, str>) -> Event<'_> {
    Event::RedactedReasoning(Signer::Anthropic.redacted(data))
}

/// Why the answer ended, of a message or the delta of one (Anthropic API reference, Handling stop reasons).
fn finish(members: &Members<'_>) -> Option<Finish> {
    let reason = members.present("stop_reason").and_then(text_of)?;
    Some(match &*reason {
        "stop_sequence" => {
            Finish::StopSequence(members.present("stop_sequence").and_then(text_of).map(Cow::into_owned))
        }
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "tool_use" => Finish::ToolCalls,
        "refusal" => Finish::ContentFilter,
        // `end_turn`; and `pause_turn`, after which the same request goes on, but only with tools of the provider's.
        _ => Finish::Stop,
    })
}

fn error(event: &Members<'_>, credential: Option<&str>) -> UpstreamError {
    event
        .present("error")
        .map_or(UpstreamError::BadAnswer("its error says nothing"), |error| in_stream(error, credential))
}

fn object_of<'a>(members: &Members<'a>, name: &str) -> Option<Members<'a>> {
    Members::parse(members.present(name)?.get()).ok()
}

fn index_of(event: &Members<'_>) -> u64 {
    event.present("index").and_then(|value| value.get().parse().ok()).unwrap_or(0)
}
