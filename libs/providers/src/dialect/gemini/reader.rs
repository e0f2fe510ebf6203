//! Answers, streamed and whole: each event of a stream has the form of a whole answer.

use std::borrow::Cow;

use bytes::Bytes;
use domain::Secret;
use serde_json::value::RawValue;

use super::error::{error_in, in_answer};
use crate::error::UpstreamError;
use crate::hub::{CallIds, Event, Finish, Reader, Signer, Whole};
use crate::json::{Members, elements, said_in, text_of};
use crate::usage::{Lacks, Usage, count};

/// Reads the events of a stream.
#[derive(Debug)]
pub(crate) struct GeminiReader {
    credential: Option<Secret>,
    /// Told on as the answer's own once it has ended: until then it is of what there is so far, and often without the output.
    usage: Option<Usage>,
    ids: CallIds,
    started: bool,
    finished: bool,
}

impl GeminiReader {
    /// A reader for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(credential: Option<Secret>) -> Self {
        Self { credential, usage: None, ids: CallIds::new(), started: false, finished: false }
    }

    fn answer<'a>(&mut self, answer: &Members<'a>, events: &mut Vec<Event<'a>>) -> Result<(), UpstreamError> {
        if !std::mem::replace(&mut self.started, true) {
            let text = |name| answer.present(name).and_then(text_of);
            events.push(Event::Start { id: text("responseId"), model: text("modelVersion") });
        }
        let candidates = answer.present("candidates").and_then(|value| elements(value.get()).ok()).unwrap_or_default();
        // One answer was asked for.
        let candidate = candidates.first().and_then(|candidate| Members::parse(candidate.get()).ok());
        if let Some(candidate) = &candidate {
            self.content(candidate, events);
        }
        let told = answer.present("usageMetadata").and_then(usage);
        let is_new = told.is_some();
        self.usage = told.or(self.usage);
        let reason = candidate.as_ref().and_then(|candidate| candidate.present("finishReason")).and_then(text_of);
        let blocked = answer
            .present("promptFeedback")
            .and_then(|feedback| Members::parse(feedback.get()).ok())
            .is_some_and(|feedback| feedback.present("blockReason").is_some());
        if !self.finished {
            let finish = match reason {
                Some(reason) => Some(self.finish(&reason)?),
                None if blocked => Some(Finish::ContentFilter),
                None => None,
            };
            self.finished = finish.is_some();
            let ends = finish.is_some();
            events.extend(finish.map(Event::Finish));
            events.extend(self.usage.filter(|_| ends).map(Event::Usage));
        } else if is_new {
            events.extend(self.usage.map(Event::Usage));
        }
        Ok(())
    }

    fn content<'a>(&mut self, candidate: &Members<'a>, events: &mut Vec<Event<'a>>) {
        let content = candidate.present("content").and_then(|value| Members::parse(value.get()).ok());
        let parts = content.and_then(|content| elements(content.present("parts")?.get()).ok()).unwrap_or_default();
        for part in parts.into_iter().filter_map(|part| Members::parse(part.get()).ok()) {
            let some = |name| part.present(name).and_then(said_in).filter(|text: &Cow<'_, str>| !text.is_empty());
            let signature = some("thoughtSignature");
            if let Some(call) = part.present("functionCall").and_then(|call| Members::parse(call.get()).ok()) {
                self.call(&call, signature.map(|signature| Signer::Gemini.signed(signature)), events);
                continue;
            }
            let is_thought = part.present("thought").is_some_and(|thought| thought.get() == "true");
            events.extend(some("text").map(if is_thought { Event::Reasoning } else { Event::Text }));
            // The text's own, or that of all before it, is told behind it, so that texts stay in one piece.
            if let Some(signature) = signature {
                if is_thought {
                    events.push(Event::ReasoningSignature(Signer::Gemini.signed(signature)));
                } else {
                    events.push(Event::NextThought);
                    events.push(Event::ReasoningSignature(Signer::GeminiText.signed(signature)));
                }
            }
        }
    }

    fn call<'a>(&mut self, call: &Members<'a>, signature: Option<Cow<'a, str>>, events: &mut Vec<Event<'a>>) {
        let (index, own) = self.ids.next();
        let text = |name| call.present(name).and_then(text_of).filter(|text: &Cow<'_, str>| !text.is_empty());
        let id = text("id").unwrap_or(Cow::Owned(own));
        events.push(Event::ToolCall { index, id, name: text("name").unwrap_or_default(), signature });
        let json = call.present("args").map_or("{}", RawValue::get);
        events.push(Event::Arguments { index, json: json.into() });
    }

    /// Why the answer ended (Gemini API reference, FinishReason).
    fn finish(&self, reason: &str) -> Result<Finish, UpstreamError> {
        Ok(match reason {
            "MAX_TOKENS" => Finish::Length,
            "SAFETY"
            | "RECITATION"
            | "LANGUAGE"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "OTHER"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION"
            | "IMAGE_OTHER" => Finish::ContentFilter,
            "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" | "TOO_MANY_TOOL_CALLS" | "MALFORMED_RESPONSE" => {
                return Err(UpstreamError::BadAnswer("the model called a tool in a way that cannot be read"));
            }
            "MISSING_THOUGHT_SIGNATURE" => {
                return Err(UpstreamError::BadAnswer("a call of a tool in the conversation has lost its signature"));
            }
            _ if self.ids.has_given() => Finish::ToolCalls,
            _ => Finish::Stop,
        })
    }
}

impl Reader for GeminiReader {
    fn read<'a>(
        &mut self,
        _name: Option<&str>,
        data: &'a [u8],
        events: &mut Vec<Event<'a>>,
    ) -> Result<(), UpstreamError> {
        let text = std::str::from_utf8(data).map_err(|_| UpstreamError::BadAnswer("an event is not UTF-8"))?;
        if let Some(error) = error_in(text) {
            return Err(in_answer(&error, self.credential.as_ref().map(Secret::expose)));
        }
        let answer = Members::parse(text).map_err(|_| UpstreamError::BadAnswer("an event is not a JSON object"))?;
        self.answer(&answer, events)
    }

    fn is_complete(&self) -> bool {
        self.finished
    }

    /// There is no last event: the stream just ends.
    fn is_over(&self) -> bool {
        false
    }

    /// What has been told of the output before the end is the least that it comes to.
    fn usage_so_far(&self) -> Option<Usage> {
        let usage = self.usage.filter(Usage::is_possible)?;
        Some(match usage.lacks {
            Lacks::Nothing => Usage { lacks: Lacks::Completion, ..usage },
            Lacks::Prompt | Lacks::Completion => usage,
        })
    }
}

/// Reads an answer that came in one piece.
pub(crate) fn read_whole(body: &Bytes, credential: Option<&str>) -> Result<Whole, UpstreamError> {
    let text = std::str::from_utf8(body).map_err(|_| UpstreamError::BadAnswer("it is not UTF-8"))?;
    if let Some(error) = error_in(text) {
        return Err(in_answer(&error, credential));
    }
    let answer = Members::parse(text).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    let mut reader = GeminiReader::new(None);
    let mut events = Vec::new();
    reader.answer(&answer, &mut events)?;
    if !reader.finished {
        return Err(UpstreamError::BadAnswer("it does not say how it ended"));
    }
    Ok(Whole::of(events))
}

/// Usage (Gemini API reference, UsageMetadata). Tokens of what tools of the provider's found are prompt tokens beside the
/// prompt, and thoughts are output beside the answer.
fn usage(value: &RawValue) -> Option<Usage> {
    let members = Members::parse(value.get()).ok()?;
    let of = |name| count(&members, &[name]);
    let (prompt, answer, thoughts) = (of("promptTokenCount"), of("candidatesTokenCount"), of("thoughtsTokenCount"));
    if prompt.is_none() && answer.is_none() && thoughts.is_none() {
        return None;
    }
    let thoughts = thoughts.unwrap_or(0);
    Some(Usage {
        prompt_tokens: prompt.unwrap_or(0).saturating_add(of("toolUsePromptTokenCount").unwrap_or(0)),
        completion_tokens: answer.unwrap_or(0).saturating_add(thoughts),
        cached_tokens: of("cachedContentTokenCount").unwrap_or(0),
        cache_write_tokens: 0,
        reasoning_tokens: thoughts,
        cost: None,
        lacks: if prompt.is_none() { Lacks::Prompt } else { Lacks::Nothing },
    })
}
