//! Answers, streamed and whole: each line of a stream has the form of a whole answer.

use std::borrow::Cow;

use bytes::Bytes;
use domain::Secret;
use serde_json::value::RawValue;

use crate::dialect::openai::in_body;
use crate::error::UpstreamError;
use crate::hub::{CallIds, Event, Finish, Reader, Whole};
use crate::json::{Members, elements, object, said_in, text_of};
use crate::usage::{Lacks, Usage, count};

/// Reads the lines of a stream.
#[derive(Debug)]
pub(crate) struct OllamaReader {
    credential: Option<Secret>,
    ids: CallIds,
    started: bool,
    over: bool,
}

impl OllamaReader {
    /// A reader for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(credential: Option<Secret>) -> Self {
        Self { credential, ids: CallIds::new(), started: false, over: false }
    }

    fn answer<'a>(&mut self, answer: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let text = |name| answer.present(name).and_then(text_of);
        if !std::mem::replace(&mut self.started, true) {
            events.push(Event::Start { id: None, model: text("model") });
        }
        if let Some(message) = answer.present("message").and_then(|value| Members::parse(value.get()).ok()) {
            let some = |name| message.present(name).and_then(said_in).filter(|text: &Cow<'_, str>| !text.is_empty());
            events.extend(some("thinking").map(Event::Reasoning));
            events.extend(some("content").map(Event::Text));
            let calls = message.present("tool_calls").and_then(|value| elements(value.get()).ok());
            for call in calls.unwrap_or_default() {
                self.call(call, events);
            }
        }
        if answer.present("done").is_some_and(|done| done.get() == "true") {
            self.over = true;
            events.push(Event::Finish(match text("done_reason").as_deref() {
                Some("length") => Finish::Length,
                _ if self.ids.has_given() => Finish::ToolCalls,
                // `stop`; and `load`, where there was nothing to answer.
                _ => Finish::Stop,
            }));
            events.extend(usage(answer).map(Event::Usage));
        }
    }

    /// Calls come whole, and their arguments as an object.
    fn call<'a>(&mut self, call: &'a RawValue, events: &mut Vec<Event<'a>>) {
        let Ok(call) = Members::parse(call.get()) else { return };
        let Some(function) = call.present("function").and_then(|value| Members::parse(value.get()).ok()) else {
            return;
        };
        let (index, own) = self.ids.next();
        let id = call.present("id").and_then(text_of).filter(|id| !id.is_empty()).unwrap_or(Cow::Owned(own));
        let name = function.present("name").and_then(text_of).unwrap_or_default();
        events.push(Event::ToolCall { index, id, name, signature: None });
        let json = function.present("arguments").map_or("{}", RawValue::get);
        events.push(Event::Arguments { index, json: json.into() });
    }
}

impl Reader for OllamaReader {
    fn read<'a>(
        &mut self,
        _name: Option<&str>,
        data: &'a [u8],
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), UpstreamError> {
        let (_, answer) = object(data).map_err(|_| UpstreamError::BadAnswer("a line is not a JSON object"))?;
        if let Some(error) = answer.present("error") {
            return Err(in_body(error, self.credential.as_ref().map(Secret::expose)));
        }
        self.answer(&answer, events);
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.over
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

/// Reads an answer that came in one piece.
pub(crate) fn read_whole(body: &Bytes, credential: Option<&str>) -> Result<Whole, UpstreamError> {
    let (_, answer) = object(body).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    if let Some(error) = answer.present("error") {
        return Err(in_body(error, credential));
    }
    let mut reader = OllamaReader::new(None);
    let mut events = Vec::new();
    reader.answer(&answer, &mut events);
    if !reader.over {
        return Err(UpstreamError::BadAnswer("it does not say how it ended"));
    }
    Ok(Whole::of(events))
}

/// The counts of a whole answer. Servers leave out that of a prompt they had in their cache: what is not there was not
/// reported, and is no zero.
fn usage(answer: &Members<'_>) -> Option<Usage> {
    let (prompt, completion) = (count(answer, &["prompt_eval_count"]), count(answer, &["eval_count"]));
    let lacks = match (prompt, completion) {
        (Some(_), Some(_)) => Lacks::Nothing,
        (None, Some(_)) => Lacks::Prompt,
        (Some(_), None) => Lacks::Completion,
        (None, None) => return None,
    };
    let (prompt_tokens, completion_tokens) = (prompt.unwrap_or(0), completion.unwrap_or(0));
    Some(Usage { prompt_tokens, completion_tokens, lacks, ..Usage::default() })
}
