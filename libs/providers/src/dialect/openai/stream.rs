//! A chat stream on its way through: the provider's bytes with splices, and a tally of what went by.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::answer::splice_model;
use super::{SpliceRules, in_body};
use crate::error::UpstreamError;
use crate::json::{Members, Splices, elements, object, text_of};
use crate::sse::{Event, MAX_EVENT_BYTES, Piece, Scanner};
use crate::usage::Usage;

/// How much delivered text is kept for counting; what lies beyond is only measured.
const MAX_KEPT_BYTES: usize = 256 * 1024;

/// Text that reached the client, kept for an estimate of its tokens should the provider report none.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    text: String,
    chars_beyond: u64,
}

impl Delivered {
    /// The first 256 KiB of it: contents, refusals, reported reasoning, names and arguments of tool calls.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many characters came after those.
    #[must_use]
    pub fn chars_beyond(&self) -> u64 {
        self.chars_beyond
    }

    /// Whether nothing was delivered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn add(&mut self, text: &str) {
        if self.chars_beyond == 0 && self.text.len() + text.len() <= MAX_KEPT_BYTES {
            self.text.push_str(text);
        } else {
            self.chars_beyond += text.chars().count() as u64;
        }
    }

    /// Adds what a `message` or `delta` says.
    pub(super) fn add_message(&mut self, message: &RawValue) {
        let Ok(message) = Members::parse(message.get()) else { return };
        for name in ["content", "refusal", "reasoning_content", "reasoning"] {
            if let Some(text) = message.present(name).and_then(text_of) {
                self.add(&text);
            }
        }
        let calls = message.present("tool_calls").and_then(|calls| elements(calls.get()).ok()).unwrap_or_default();
        let functions = calls
            .into_iter()
            .filter_map(|call| Members::parse(call.get()).ok()?.present("function"))
            .chain(message.present("function_call"));
        for function in functions.filter_map(|function| Members::parse(function.get()).ok()) {
            for name in ["name", "arguments"] {
                if let Some(text) = function.present(name).and_then(text_of) {
                    self.add(&text);
                }
            }
        }
    }
}

/// What is known of a stream, at any moment of it.
#[derive(Clone, Debug, Default)]
pub struct StreamOutcome {
    /// The last usage reported in any chunk.
    pub usage: Option<Usage>,
    /// The finish reason of each choice that has ended, by index.
    pub finish_reasons: Vec<String>,
    /// The text that went by.
    pub delivered: Delivered,
    /// Whether the answer is whole: `[DONE]` was seen, or every choice that began has its finish reason.
    pub complete: bool,
    /// The model named by the provider.
    pub upstream_model: Option<String>,
    /// The `id` of the answer, which events of ours carry too.
    pub answer_id: Option<String>,
    /// The `created` time of the answer, in seconds since 1970.
    pub created_s: Option<i64>,
}

/// Passes a provider's chat stream on. Fed with bytes as they arrive, it gives out whole events only, so between two
/// calls the client's stream is always at an event boundary, where comments and events of ours may be written.
#[derive(Debug)]
pub struct StreamTap {
    scanner: Scanner,
    rules: SpliceRules,
    credential: Option<domain::Secret>,
    before_done: Option<Bytes>,
    at_start: bool,
    saw_event: bool,
    last_dropped: bool,
    done: bool,
    /// Choices that began, and their finish reasons.
    choices: BTreeMap<u64, Option<String>>,
    usage: Option<Usage>,
    delivered: Delivered,
    upstream_model: Option<String>,
    answer_id: Option<String>,
    created_s: Option<i64>,
}

impl StreamTap {
    /// A tap for one stream. The credential is only needed to keep it out of error messages.
    #[must_use]
    pub fn new(rules: SpliceRules, credential: Option<domain::Secret>) -> Self {
        Self {
            scanner: Scanner::default(),
            rules,
            credential,
            before_done: None,
            at_start: true,
            saw_event: false,
            last_dropped: false,
            done: false,
            choices: BTreeMap::new(),
            usage: None,
            delivered: Delivered::default(),
            upstream_model: None,
            answer_id: None,
            created_s: None,
        }
    }

    /// An event of ours, whole with its blank line, to be written before `[DONE]`, or at the end where none comes.
    pub fn insert_before_done(&mut self, event: Bytes) {
        self.before_done = Some(event);
    }

    /// Whether an event with data has passed; one that carries an error has not.
    #[must_use]
    pub fn saw_event(&self) -> bool {
        self.saw_event
    }

    /// Whether `[DONE]` has passed; nothing is expected after it.
    #[must_use]
    pub fn saw_done(&self) -> bool {
        self.done
    }

    /// Takes what arrived and appends to `out` what the client gets for it.
    ///
    /// # Errors
    /// The provider reported an error in the stream, or sent an event over 8 MiB. Everything before it is in `out`; the
    /// event itself is not.
    pub fn push(&mut self, arrived: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        self.scanner.push(arrived);
        loop {
            let piece = self
                .scanner
                .next_piece()
                .map_err(|_| UpstreamError::TooLarge { limit_bytes: MAX_EVENT_BYTES as u64 })?;
            match piece {
                None => return Ok(()),
                Some(Piece::LateLf) if self.last_dropped => {}
                Some(Piece::LateLf) => out.extend_from_slice(b"\n"),
                Some(Piece::Block(block)) => self.block(&block, out)?,
            }
        }
    }

    /// The provider closed the stream. A last event that only lacks its blank line is passed on, half an event is not.
    ///
    /// # Errors
    /// [`UpstreamError::Truncated`] when the answer is not whole, or what [`StreamTap::push`] reports. `out` is at an
    /// event boundary then too.
    pub fn finish(&mut self, out: &mut BytesMut) -> Result<(), UpstreamError> {
        let rest = self.scanner.take_rest();
        let event = Event::read(&rest, self.at_start);
        let is_whole =
            event.is_only_comments() || &*event.data == b"[DONE]" || (event.has_data() && object(&event.data).is_ok());
        let before = out.len();
        if is_whole {
            self.block(&rest, out)?;
        }
        let complete = self.is_complete() && (is_whole || self.done);
        let trailer = self.before_done.take().filter(|_| complete);
        if (trailer.is_some() || !complete) && out.len() > before {
            out.extend_from_slice(b"\n\n");
        }
        out.extend_from_slice(&trailer.unwrap_or_default());
        if complete { Ok(()) } else { Err(UpstreamError::Truncated) }
    }

    /// What is known so far.
    #[must_use]
    pub fn outcome(&self) -> StreamOutcome {
        StreamOutcome {
            usage: self.usage,
            finish_reasons: self.choices.values().flatten().cloned().collect(),
            delivered: self.delivered.clone(),
            complete: self.is_complete(),
            upstream_model: self.upstream_model.clone(),
            answer_id: self.answer_id.clone(),
            created_s: self.created_s,
        }
    }

    /// Whether the answer is whole: `[DONE]` was seen, or every choice that began has its finish reason.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.done || (!self.choices.is_empty() && self.choices.values().all(Option::is_some))
    }

    fn block(&mut self, block: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        let event = Event::read(block, std::mem::take(&mut self.at_start));
        self.last_dropped = false;
        if &*event.data == b"[DONE]" {
            self.done = true;
            self.saw_event = true;
            out.extend_from_slice(&self.before_done.take().unwrap_or_default());
        } else if let Ok((text, chunk)) = object(&event.data) {
            if let Some(error) = chunk.present("error") {
                return Err(in_body(error, self.credential.as_ref().map(domain::Secret::expose)));
            }
            self.saw_event = true;
            let choices = chunk.present("choices").and_then(|value| elements(value.get()).ok());
            self.tally(&chunk, choices.as_deref().unwrap_or_default());
            let strip = self.rules.strip_usage && chunk.get("usage").is_some();
            if strip && chunk.present("usage").is_some() && choices.is_some_and(|choices| choices.is_empty()) {
                self.last_dropped = true;
                event.comments().for_each(|comment| out.extend_from_slice(comment));
                return Ok(());
            }
            let mut splices = Splices::default();
            splice_model(&mut splices, text, &chunk, &self.rules.public_model);
            if strip {
                for range in chunk.ranges_without(text, "usage") {
                    splices.remove(range);
                }
            }
            if !splices.is_empty() {
                out.extend_from_slice(&event.edited(splices));
                return Ok(());
            }
        }
        self.saw_event |= event.has_data();
        out.extend_from_slice(block);
        Ok(())
    }

    fn tally(&mut self, chunk: &Members<'_>, choices: &[&RawValue]) {
        if let Some(usage) = chunk.present("usage").and_then(Usage::read) {
            self.usage = Some(usage);
        }
        if self.answer_id.is_none() {
            self.answer_id = chunk.present("id").and_then(text_of).map(Cow::into_owned);
            self.created_s = chunk.present("created").and_then(|value| value.get().parse().ok());
        }
        if self.upstream_model.is_none() {
            self.upstream_model = chunk.present("model").and_then(text_of).map(Cow::into_owned);
        }
        for choice in choices.iter().filter_map(|raw| Members::parse(raw.get()).ok()) {
            let index = choice.present("index").and_then(|value| value.get().parse().ok()).unwrap_or(0);
            let reason = choice.present("finish_reason").and_then(text_of).map(Cow::into_owned);
            let ended = self.choices.entry(index).or_default();
            if reason.is_some() {
                *ended = reason;
            }
            if let Some(delta) = choice.present("delta") {
                self.delivered.add_message(delta);
            }
        }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
