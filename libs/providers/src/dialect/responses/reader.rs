//! Answers, streamed and whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use domain::Secret;
use serde_json::value::RawValue;

use super::items::Sealed;
use crate::dialect::openai::{in_body, thought_signature};
use crate::error::UpstreamError;
use crate::hub::{Event, Finish, Reader, Whole};
use crate::json::{Members, elements, object, said_in, text_of};
use crate::usage::Usage;

/// Reads the events of a stream.
#[derive(Debug)]
pub(crate) struct ResponseReader {
    credential: Option<Secret>,
    started: bool,
    /// The calls by their place in the output, and whether pieces of their arguments came.
    calls: BTreeMap<u64, bool>,
    over: bool,
}

impl ResponseReader {
    /// A reader for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(credential: Option<Secret>) -> Self {
        Self { credential, started: false, calls: BTreeMap::new(), over: false }
    }

    fn start<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let Some(response) = object_of(event, "response") else { return };
        if !std::mem::replace(&mut self.started, true) {
            let text = |name| response.present(name).and_then(text_of);
            events.push(Event::Start { id: text("id"), model: text("model") });
        }
    }

    fn item_added<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let Some(item) = object_of(event, "item") else { return };
        if let Some(call) = call_of(&item, place_of(event)) {
            self.calls.insert(place_of(event), false);
            events.push(call);
        }
    }

    fn item_done<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let Some(item) = object_of(event, "item") else { return };
        events.extend(seal_of(&item));
        if self.calls.get(&place_of(event)) == Some(&false)
            && let Some(json) = arguments_of(&item)
        {
            events.push(Event::Arguments { index: place_of(event), json });
        }
    }

    fn arguments<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let index = place_of(event);
        if let (Some(has_pieces), Some(json)) = (self.calls.get_mut(&index), delta_of(event)) {
            *has_pieces = true;
            events.push(Event::Arguments { index, json });
        }
    }

    fn end<'a>(&mut self, event: &Members<'a>, events: &mut Vec<Event<'a>>) {
        self.start(event, events);
        self.over = true;
        let Some(response) = object_of(event, "response") else { return };
        events.push(Event::Finish(finish(&response, !self.calls.is_empty())));
        events.extend(response.present("usage").and_then(Usage::read).map(Event::Usage));
    }
}

impl Reader for ResponseReader {
    fn read<'a>(
        &mut self,
        name: Option<&str>,
        data: &'a [u8],
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), UpstreamError> {
        let (_, event) = object(data).map_err(|_| UpstreamError::BadAnswer("an event is not a JSON object"))?;
        let kind = event.present("type").and_then(text_of).or_else(|| name.map(|name| Cow::Owned(name.to_owned())));
        match kind.as_deref().unwrap_or_default() {
            "response.created" | "response.queued" | "response.in_progress" => self.start(&event, events),
            "response.output_item.added" => self.item_added(&event, events),
            "response.output_item.done" => self.item_done(&event, events),
            "response.output_text.delta" => events.extend(delta_of(&event).map(Event::Text)),
            "response.refusal.delta" => events.extend(delta_of(&event).map(Event::Refusal)),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                events.extend(delta_of(&event).map(Event::Reasoning));
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.arguments(&event, events);
            }
            "response.completed" | "response.incomplete" => self.end(&event, events),
            "response.failed" => {
                let error = object_of(&event, "response").and_then(|response| response.present("error"));
                return Err(self.error(error));
            }
            // The error itself, or an object that holds it.
            "error" => {
                let own = std::str::from_utf8(data).ok().and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
                return Err(self.error(event.present("error").or(own)));
            }
            // What repeats what was said in pieces, and whatever the API will have one day.
            _ => {}
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.over
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

impl ResponseReader {
    fn error(&self, error: Option<&RawValue>) -> UpstreamError {
        told(error, self.credential.as_ref().map(Secret::expose))
    }
}

/// Reads an answer that came in one piece.
pub(crate) fn read_whole(body: &Bytes, credential: Option<&str>) -> Result<Whole, UpstreamError> {
    let (_, response) = object(body).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    if let Some(error) = response.present("error") {
        return Err(told(Some(error), credential));
    }
    let output = response
        .present("output")
        .and_then(|value| elements(value.get()).ok())
        .ok_or(UpstreamError::BadAnswer("it has no output"))?;
    let text = |name| response.present(name).and_then(text_of);
    let mut events = vec![Event::Start { id: text("id"), model: text("model") }];
    let mut has_calls = false;
    for (place, item) in (0_u64..).zip(output) {
        let Ok(item) = Members::parse(item.get()) else { continue };
        for list in ["summary", "content"] {
            let parts = item.present(list).and_then(|parts| elements(parts.get()).ok()).unwrap_or_default();
            events.extend(parts.into_iter().filter_map(|part| said(&Members::parse(part.get()).ok()?)));
        }
        events.extend(seal_of(&item));
        if let Some(call) = call_of(&item, place) {
            has_calls = true;
            events.push(call);
            events.extend(arguments_of(&item).map(|json| Event::Arguments { index: place, json }));
        }
    }
    events.push(Event::Finish(finish(&response, has_calls)));
    events.extend(response.present("usage").and_then(Usage::read).map(Event::Usage));
    Ok(Whole::of(events))
}

/// What a part of a whole answer says.
fn said<'a>(part: &Members<'a>) -> Option<Event<'a>> {
    let text = |name| part.present(name).and_then(said_in).filter(|text: &Cow<'_, str>| !text.is_empty());
    match part.present("type").and_then(text_of).as_deref()? {
        "output_text" => text("text").map(Event::Text),
        "refusal" => text("refusal").map(Event::Refusal),
        "summary_text" | "reasoning_text" => text("text").map(Event::Reasoning),
        _ => None,
    }
}

fn call_of<'a>(item: &Members<'a>, index: u64) -> Option<Event<'a>> {
    let text = |name| item.present(name).and_then(text_of);
    if !matches!(text("type").as_deref(), Some("function_call" | "custom_tool_call")) {
        return None;
    }
    let (id, name) = (text("call_id").unwrap_or_default(), text("name").unwrap_or_default());
    Some(Event::ToolCall { index, id, name, signature: thought_signature(item) })
}

/// The arguments of a function, or the input of another tool.
fn arguments_of<'a>(item: &Members<'a>) -> Option<Cow<'a, str>> {
    ["arguments", "input"].iter().find_map(|name| item.present(name).and_then(said_in))
}

fn seal_of<'a>(item: &Members<'a>) -> Option<Event<'a>> {
    match Sealed::read(item.present("encrypted_content").and_then(text_of)?) {
        Sealed::Signed(signature) => Some(Event::ReasoningSignature(signature)),
        Sealed::Redacted(data) => Some(Event::RedactedReasoning(data)),
        Sealed::Foreign => None,
    }
}

fn finish(response: &Members<'_>, has_calls: bool) -> Finish {
    let reason = object_of(response, "incomplete_details").and_then(|details| text_of(details.present("reason")?));
    match reason.as_deref() {
        Some("content_filter") => Finish::ContentFilter,
        Some(_) => Finish::Length,
        None if has_calls => Finish::ToolCalls,
        None => Finish::Stop,
    }
}

fn told(error: Option<&RawValue>, credential: Option<&str>) -> UpstreamError {
    error.map_or(UpstreamError::BadAnswer("its error says nothing"), |error| in_body(error, credential))
}

fn delta_of<'a>(event: &Members<'a>) -> Option<Cow<'a, str>> {
    event.present("delta").and_then(said_in).filter(|text| !text.is_empty())
}

fn object_of<'a>(members: &Members<'a>, name: &str) -> Option<Members<'a>> {
    Members::parse(members.present(name)?.get()).ok()
}

/// The place of the item that an event is about.
fn place_of(event: &Members<'_>) -> u64 {
    event.present("output_index").and_then(|value| value.get().parse().ok()).unwrap_or(0)
}
