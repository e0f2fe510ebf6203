//! Chat answers, streamed and whole, for clients of other dialects: OpenAI's, and those of servers that imitate it.

use std::borrow::Cow;

use bytes::Bytes;
use domain::Secret;
use serde_json::value::RawValue;

use super::answer::success;
use super::bound::index_of;
use super::in_body;
use super::turns::{reasoning_detail, thinking, thought_signature};
use crate::error::{UpstreamError, Words};
use crate::hub::{Block, Event, Finish, Reader, Signer, Whole};
use crate::json::{Members, Pieces, elements, object, said_in, text_of};
use crate::usage::Usage;

/// A call of a tool that has begun.
#[derive(Debug)]
struct Call {
    /// Its `index`; some servers give none.
    index: Option<u64>,
    /// The first id that was given for it, or ours.
    id: String,
    is_ours: bool,
    /// Whether its name has come, without which nobody can be told of it.
    named: bool,
    /// Arguments that came before the name.
    early: String,
}

/// Reads one answer, of whose choices only the first was asked for.
#[derive(Debug)]
pub(crate) struct ChatReader {
    credential: Option<Secret>,
    started: bool,
    /// Whether thoughts have come as bare text alone, which is the same as that of `reasoning_details` that come later.
    thinks_aloud: bool,
    /// Whether some of it belongs to the detail that comes next.
    said_aloud: bool,
    /// The `index` of the last of `reasoning_details`.
    detail: Option<u64>,
    /// Whether a piece of the last thought's signature has come.
    signing: bool,
    calls: Vec<Call>,
    content: Pieces,
    finished: bool,
    done: bool,
}

impl ChatReader {
    /// A reader for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(credential: Option<Secret>) -> Self {
        Self {
            credential,
            started: false,
            thinks_aloud: false,
            said_aloud: false,
            detail: None,
            signing: false,
            calls: Vec::new(),
            content: Pieces::default(),
            finished: false,
            done: false,
        }
    }

    fn start<'a>(&mut self, chunk: &Members<'a>, events: &mut Vec<Event<'a>>) {
        if !std::mem::replace(&mut self.started, true) {
            let text = |name| chunk.present(name).and_then(text_of).filter(|text| !text.is_empty());
            events.push(Event::Start { id: text("id"), model: text("model") });
        }
    }

    /// What a delta brings, or a whole message says.
    fn message<'a>(&mut self, message: &Members<'a>, events: &mut Vec<Event<'a>>) {
        self.reasoning(message, events);
        match message.present("content") {
            Some(content) if content.get().starts_with('[') => {
                for part in elements(content.get()).unwrap_or_default() {
                    events.extend(Members::parse(part.get()).ok().and_then(|part| content_part(&part)));
                }
            }
            Some(content) => events.extend(some_text(self.content.said_in(content)).map(Event::Text)),
            None => {}
        }
        events.extend(some_text(message.present("refusal").and_then(said_in)).map(Event::Refusal));
        let calls = message.present("tool_calls").and_then(|calls| elements(calls.get()).ok()).unwrap_or_default();
        for call in calls.into_iter().filter_map(|call| Members::parse(call.get()).ok()) {
            self.call(&call, "function", events);
        }
        if message.present("function_call").is_some() {
            self.call(message, "function_call", events);
        }
    }

    /// What the model thought. Details alone have signatures, each its own, and tell where a thought ends.
    fn reasoning<'a>(&mut self, message: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let bare = ["reasoning_content", "reasoning"].iter().find_map(|name| message.present(name).and_then(said_in));
        let details = message.present("reasoning_details").and_then(|value| elements(value.get()).ok());
        // Who numbers none of them tells them apart by their places in the list.
        let numbered = |(place, detail)| Some((detail_index(detail).unwrap_or(place), reasoning_detail(detail)?));
        let details: Vec<_> = (0..).zip(details.unwrap_or_default()).filter_map(numbered).collect();
        let says = |block: &Block<'_>| matches!(block, Block::Reasoning { text, .. } if !text.is_empty());
        let is_told = details.iter().any(|(_, detail)| says(detail));
        if let Some(bare) = some_text(bare).filter(|_| self.thinks_aloud || !is_told) {
            (self.thinks_aloud, self.said_aloud, self.signing) = (true, true, false);
            events.push(Event::Reasoning(bare));
        }
        for (index, detail) in details {
            let goes_on = std::mem::take(&mut self.said_aloud) || self.detail.is_none_or(|last| last == index);
            self.detail = Some(index);
            match detail {
                Block::Reasoning { text, signature } => {
                    if !goes_on {
                        self.signing = false;
                        events.push(Event::NextThought);
                    }
                    if !text.is_empty() {
                        self.signing = false;
                        events.extend(Some(text).filter(|_| !self.thinks_aloud).map(Event::Reasoning));
                    }
                    events.extend(signature.map(|signature| self.signature(signature)));
                }
                Block::RedactedReasoning { data } => events.push(Event::RedactedReasoning(data)),
                _ => {}
            }
        }
    }

    /// A signature is marked where it begins.
    fn signature<'a>(&mut self, piece: Cow<'a, str>) -> Event<'a> {
        let goes_on = std::mem::replace(&mut self.signing, true);
        let further = Signer::Anthropic.own(&piece).filter(|_| goes_on).map(str::to_owned);
        Event::ReasoningSignature(further.map_or(piece, Cow::Owned))
    }

    /// A call, or a piece of one: which it belongs to is told by its index and id together.
    fn call<'a>(&mut self, call: &Members<'a>, function: &str, events: &mut Vec<Event<'a>>) {
        let index = call.present("index").and_then(|value| value.get().parse::<u64>().ok());
        let id = some_text(call.present("id").and_then(text_of)).filter(|_| function == "function");
        let function = call.present(function).and_then(|value| Members::parse(value.get()).ok());
        let member = |name| function.as_ref().and_then(|function| function.present(name));
        let name = some_text(member("name").and_then(text_of));
        let place = self.calls.iter().rposition(|known| match (index, &id) {
            (Some(index), Some(id)) => known.index == Some(index) && (known.is_ours || known.id == **id),
            (Some(index), None) => known.index == Some(index),
            (None, Some(id)) => known.id == **id,
            // With nothing to tell it by, a name begins a call.
            (None, None) => name.is_none() || !known.named,
        });
        let place = place.unwrap_or_else(|| {
            let is_ours = id.is_none();
            let id = id.map_or_else(|| format!("call_{:024x}", rand::random::<u128>() >> 32), Cow::into_owned);
            self.calls.push(Call { index, id, is_ours, named: false, early: String::new() });
            self.calls.len() - 1
        });
        let Some(known) = self.calls.get_mut(place) else { return };
        let number = place as u64;
        if !known.named
            && let Some(name) = name
        {
            known.named = true;
            let id = Cow::Owned(known.id.clone());
            events.push(Event::ToolCall { index: number, id, name, signature: thought_signature(call) });
            if !known.early.is_empty() {
                let json = Cow::Owned(std::mem::take(&mut known.early));
                events.push(Event::Arguments { index: number, json });
            }
        }
        // A string by the reference; some servers give the object itself.
        let arguments = member("arguments").map(|value| said_in(value).unwrap_or(Cow::Borrowed(value.get())));
        match some_text(arguments) {
            Some(json) if known.named => events.push(Event::Arguments { index: number, json }),
            Some(json) => known.early.push_str(&json),
            None => {}
        }
    }

    /// Tells what is left of the content.
    fn end_content(&mut self, events: &mut Vec<Event<'_>>) {
        events.extend(self.content.rest().map(|rest| Event::Text(rest.into())));
    }

    fn finish(&mut self, choice: &Members<'_>, events: &mut Vec<Event<'_>>) -> Result<(), UpstreamError> {
        // OpenRouter's place for what became of one choice (API reference, NonStreamingChoice).
        if let Some(error) = choice.present("error") {
            return Err(in_body(error, self.credential.as_ref().map(Secret::expose)));
        }
        let Some(reason) = some_text(choice.present("finish_reason").and_then(text_of)) else { return Ok(()) };
        if self.finished {
            return Ok(());
        }
        if self.calls.iter().any(|call| !call.named) {
            return Err(UpstreamError::BadAnswer("a call of a tool has no name"));
        }
        self.end_content(events);
        let finish = match reason.as_ref() {
            "length" | "max_tokens" | "model_length" => Finish::Length,
            "content_filter" => Finish::ContentFilter,
            // Mistral's and OpenRouter's, and DeepSeek's for a server that had to give up.
            "error" | "insufficient_system_resource" => {
                let status = if reason == "error" { 500 } else { 503 };
                let words = Words { message: "the model broke off".to_owned(), ..Words::default() };
                return Err(UpstreamError::Failed { status, words, retry_after: None });
            }
            // Whatever the word, a client that is told of calls has to run them.
            _ if !self.calls.is_empty() => Finish::ToolCalls,
            "tool_calls" | "function_call" => Finish::ToolCalls,
            // vLLM tells the stop sequence here, and otherwise nothing or a token's number.
            _ => match choice.present("stop_reason").and_then(text_of) {
                Some(stop) => Finish::StopSequence(Some(stop.into_owned())),
                None => Finish::Stop,
            },
        };
        self.finished = true;
        events.push(Event::Finish(finish));
        Ok(())
    }
}

impl Reader for ChatReader {
    fn read<'a>(
        &mut self,
        _name: Option<&str>,
        data: &'a [u8],
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), UpstreamError> {
        if data.trim_ascii() == b"[DONE]" {
            self.done = true;
            self.end_content(events);
            return Ok(());
        }
        let (_, chunk) = object(data).map_err(|_| UpstreamError::BadAnswer("an event is not a JSON object"))?;
        if let Some(error) = chunk.present("error") {
            return Err(in_body(error, self.credential.as_ref().map(Secret::expose)));
        }
        let choices = chunk.present("choices").and_then(|value| elements(value.get()).ok()).unwrap_or_default();
        // What Azure says of the prompt's contents comes first, and says nothing of the answer.
        if choices.is_empty() && !self.started && some_text(chunk.present("id").and_then(text_of)).is_none() {
            return Ok(());
        }
        self.start(&chunk, events);
        let mut of_choice = None;
        for choice in choices.into_iter().filter_map(|raw| Members::parse(raw.get()).ok()) {
            if index_of(&choice) != 0 {
                continue;
            }
            if let Some(delta) = choice.present("delta").and_then(|value| Members::parse(value.get()).ok()) {
                self.message(&delta, events);
            }
            self.finish(&choice, events)?;
            of_choice = choice.present("usage").and_then(Usage::read);
        }
        events.extend(usage(&chunk).or(of_choice).map(Event::Usage));
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.done || self.finished
    }

    fn is_over(&self) -> bool {
        self.done
    }
}

/// Reads an answer that came in one piece.
pub(crate) fn read_whole(body: &Bytes, credential: Option<&str>) -> Result<Whole, UpstreamError> {
    let (_, answer) = success(body, credential)?;
    let choices = answer.present("choices").and_then(|value| elements(value.get()).ok());
    let choice = choices.and_then(|choices| Members::parse(choices.first()?.get()).ok());
    let choice = choice.ok_or(UpstreamError::BadAnswer("it has no choices"))?;
    let (mut reader, mut events) = (ChatReader::new(credential.map(Secret::new)), Vec::new());
    reader.start(&answer, &mut events);
    if let Some(message) = choice.present("message").and_then(|value| Members::parse(value.get()).ok()) {
        reader.message(&message, &mut events);
    }
    reader.end_content(&mut events);
    reader.finish(&choice, &mut events)?;
    events.extend(usage(&answer).map(Event::Usage));
    Ok(Whole::of(events))
}

/// Usage of the answer or a chunk; Groq tells that of a stream in a member of its own.
pub(super) fn usage(chunk: &Members<'_>) -> Option<Usage> {
    let of_groq = || Members::parse(chunk.present("x_groq")?.get()).ok()?.present("usage").and_then(Usage::read);
    chunk.present("usage").and_then(Usage::read).or_else(of_groq)
}

fn some_text(text: Option<Cow<'_, str>>) -> Option<Cow<'_, str>> {
    text.filter(|text| !text.is_empty())
}

/// The number by which the pieces of one of `reasoning_details` are known.
fn detail_index(detail: &RawValue) -> Option<u64> {
    Members::parse(detail.get()).ok()?.present("index")?.get().parse().ok()
}

/// A part of a content that is an array, as Mistral's models that think give it.
fn content_part<'a>(part: &Members<'a>) -> Option<Event<'a>> {
    let text = |name| some_text(part.present(name).and_then(said_in));
    match part.present("type").and_then(text_of).as_deref() {
        Some("text") | None => text("text").map(Event::Text),
        Some("thinking") => some_text(part.present("thinking").map(thinking)).map(Event::Reasoning),
        Some("refusal") => text("refusal").map(Event::Refusal),
        // Notes on what was said, such as Mistral's references.
        Some(_) => None,
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
