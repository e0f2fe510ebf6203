//! A chat stream on its way through: the provider's bytes with splices, and a tally of what went by.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::BytesMut;
use serde_json::value::RawValue;

use super::answer::splice_model;
use super::bound::Meter;
use super::chunk::Head;
use super::reader::usage as reported;
use super::texts::{Piece as Choice, pieces, texts};
use super::{SpliceRules, failure, in_body};
use crate::dialect::completions::Echoed;
use crate::error::UpstreamError;
use crate::hub::Told;
use crate::json::{Members, Splices, elements, object, text_of};
use crate::sse::{Event, MAX_EVENT_BYTES, Piece, Scanner};
use crate::tap::Tap;
use crate::usage::Usage;

/// How much delivered text is kept for counting; what lies beyond is only measured.
const MAX_KEPT_BYTES: usize = 256 * 1024;

/// Text that reached the client, kept for an estimate of its tokens should the provider report none.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    text: String,
    chars_beyond: u64,
    unseen: u64,
}

impl Delivered {
    /// The first 256 KiB of it: contents, refusals, reported reasoning, words of audio, names and arguments of tool calls.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many characters came after those.
    #[must_use]
    pub fn chars_beyond(&self) -> u64 {
        self.chars_beyond
    }

    /// Where so many more answers than these were written for each of them, and not shown.
    pub(crate) fn each_of(unseen: u64) -> Self {
        Self { unseen, ..Self::default() }
    }

    /// How many answers were written for each that was delivered.
    #[must_use]
    pub fn written_for_each(&self) -> u64 {
        self.unseen.saturating_add(1)
    }

    /// Whether nothing was delivered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Adds the next piece of text.
    pub(crate) fn add(&mut self, text: &str) {
        let room = if self.chars_beyond == 0 { MAX_KEPT_BYTES.saturating_sub(self.text.len()) } else { 0 };
        let (kept, beyond) = text.split_at(text.floor_char_boundary(room));
        self.text.push_str(kept);
        self.chars_beyond += beyond.chars().count() as u64;
    }

    /// Adds what a `message` or `delta` says.
    pub(super) fn add_message(&mut self, message: &RawValue) {
        for piece in texts(message) {
            self.add(&piece.text);
        }
    }
}

/// What is known of a stream, at any moment of it.
#[derive(Clone, Debug, Default)]
pub struct StreamOutcome {
    /// The last usage reported in any chunk, unless it cannot be true; it may lack a figure.
    pub usage: Option<Usage>,
    /// The finish reason of each choice that has ended, by index.
    pub finish_reasons: Vec<String>,
    /// The text that went by.
    pub delivered: Delivered,
    /// The tokens of that text, where the output is bounded and was counted as it went.
    pub counted_output: Option<u64>,
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
pub(crate) struct StreamTap {
    scanner: Scanner,
    rules: SpliceRules,
    credential: Option<domain::Secret>,
    member_due: bool,
    at_start: bool,
    saw_event: bool,
    last_dropped: bool,
    done: bool,
    cut: bool,
    meter: Option<Meter>,
    /// Choices that began, and their finish reasons.
    choices: BTreeMap<u64, Option<String>>,
    usage: Option<Usage>,
    has_doubts: bool,
    delivered: Delivered,
    echoed: Option<Echoed>,
    upstream_model: Option<String>,
    answer_id: Option<String>,
    created_s: Option<i64>,
}

impl StreamTap {
    /// A tap for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(rules: SpliceRules, credential: Option<domain::Secret>) -> Self {
        let echoed = rules.repeats.clone().map(Echoed::new);
        Self {
            scanner: Scanner::default(),
            delivered: echoed.as_ref().map(Echoed::delivered).unwrap_or_default(),
            echoed,
            meter: rules.bound.map(Meter::new),
            member_due: rules.member.is_some(),
            rules,
            credential,
            at_start: true,
            saw_event: false,
            last_dropped: false,
            done: false,
            cut: false,
            choices: BTreeMap::new(),
            usage: None,
            has_doubts: false,
            upstream_model: None,
            answer_id: None,
            created_s: None,
        }
    }

    fn block(&mut self, block: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        let event = Event::read(block, std::mem::take(&mut self.at_start));
        self.last_dropped = false;
        if &*event.data == b"[DONE]" {
            self.done = true;
            self.saw_event = true;
            self.write_member(out);
        } else if let Ok((text, chunk)) = object(&event.data) {
            if let Some(error) = chunk.present("error") {
                return Err(in_body(error, self.credential.as_ref().map(domain::Secret::expose)));
            }
            self.saw_event = true;
            let choices = chunk.present("choices").and_then(|value| elements(value.get()).ok());
            let mut here = pieces(choices.as_deref().unwrap_or_default());
            if let Some(echoed) = &mut self.echoed {
                here.iter_mut().for_each(|piece| echoed.strip(piece));
            }
            self.note(&chunk);
            if self.meter.as_mut().is_some_and(|meter| !meter.take(&here)) {
                self.cut_before(&here, out);
                return Ok(());
            }
            self.tally(here);
            let strip = self.rules.strip_usage && chunk.get("usage").is_some();
            if strip && chunk.present("usage").is_some() && is_only_usage(&chunk, choices.as_deref()) {
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

    /// Ends the answer before an event that would take it over its bound.
    fn cut_before(&mut self, dropped: &[Choice<'_>], out: &mut BytesMut) {
        for piece in dropped {
            self.choices.entry(piece.index).or_default();
        }
        let head = Head::new(self.answer_id.as_deref(), self.created_s, &self.rules.public_model);
        let head = head.bare(self.echoed.is_some());
        for (index, reason) in self.choices.iter_mut().filter(|(_, reason)| reason.is_none()) {
            out.extend_from_slice(&head.ended(*index, !self.rules.strip_usage));
            *reason = Some("length".to_owned());
        }
        if let Some(meter) = self.meter.as_ref().filter(|_| !self.rules.strip_usage) {
            let counted = (meter.bound().prompt_tokens, meter.tokens());
            let (prompt, completion) = self
                .usage
                .map_or(counted, |usage| (usage.prompt_tokens.unsigned_abs(), usage.completion_tokens.unsigned_abs()));
            out.extend_from_slice(&head.usage(prompt, completion));
        }
        self.write_member(out);
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.cut = true;
        self.done = true;
    }

    /// Writes our own member, once, as a chunk without choices: client libraries take every event for a chunk.
    fn write_member(&mut self, out: &mut BytesMut) {
        if !std::mem::take(&mut self.member_due) {
            return;
        }
        if let Some((name, value)) = &self.rules.member {
            let head = Head::new(self.answer_id.as_deref(), self.created_s, &self.rules.public_model);
            out.extend_from_slice(&head.member(name, value));
        }
    }

    /// Keeps what a chunk says of the whole answer.
    fn note(&mut self, chunk: &Members<'_>) {
        if let Some(usage) = reported(chunk) {
            self.usage = Some(usage).filter(Usage::is_possible);
            // Once for a stream: some servers report with every chunk.
            if self.usage.is_none() && !std::mem::replace(&mut self.has_doubts, true) {
                usage.warn_of_doubt();
            }
        }
        // What Azure says of the prompt's contents comes first, under no name.
        let text = |name| chunk.present(name).and_then(text_of).filter(|text| !text.is_empty()).map(Cow::into_owned);
        if self.answer_id.is_none() {
            self.answer_id = text("id");
            self.created_s = chunk.present("created").and_then(|value| value.get().parse().ok());
        }
        if self.upstream_model.is_none() {
            self.upstream_model = text("model");
        }
    }

    fn tally(&mut self, pieces: Vec<Choice<'_>>) {
        for piece in pieces {
            let ended = self.choices.entry(piece.index).or_default();
            if piece.finish_reason.is_some() {
                *ended = piece.finish_reason;
            }
            piece.texts.iter().for_each(|text| self.delivered.add(&text.text));
        }
    }
}

/// Whether there is nothing in a chunk with usage but that. Some servers leave `choices` out of it.
fn is_only_usage(chunk: &Members<'_>, choices: Option<&[&RawValue]>) -> bool {
    choices.map_or_else(|| chunk.present("choices").is_none(), <[_]>::is_empty)
}

impl Tap for StreamTap {
    fn push(&mut self, arrived: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        self.scanner.push(arrived);
        while !self.cut {
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
        Ok(())
    }

    /// A last event that only lacks its blank line is passed on, half an event is not.
    fn finish(&mut self, out: &mut BytesMut) -> Result<(), UpstreamError> {
        if self.cut {
            return Ok(());
        }
        let rest = self.scanner.take_rest();
        let event = Event::read(&rest, self.at_start);
        let is_whole =
            event.is_only_comments() || &*event.data == b"[DONE]" || (event.has_data() && object(&event.data).is_ok());
        let before = out.len();
        if is_whole {
            self.block(&rest, out)?;
        }
        let complete = self.is_complete() && (is_whole || self.done);
        if (self.member_due || !complete) && out.len() > before {
            out.extend_from_slice(b"\n\n");
        }
        if complete {
            self.write_member(out);
        }
        if complete { Ok(()) } else { Err(UpstreamError::Truncated) }
    }

    fn outcome(&self) -> StreamOutcome {
        StreamOutcome {
            counted_output: self.meter.as_ref().map(Meter::tokens),
            usage: self.usage,
            finish_reasons: self.choices.values().flatten().cloned().collect(),
            delivered: self.delivered.clone(),
            complete: self.is_complete(),
            upstream_model: self.upstream_model.clone(),
            answer_id: self.answer_id.clone(),
            created_s: self.created_s,
        }
    }

    fn is_complete(&self) -> bool {
        self.done || (!self.choices.is_empty() && self.choices.values().all(Option::is_some))
    }

    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut) {
        out.extend_from_slice(&failure(told));
    }

    fn waiting(&self) -> usize {
        self.scanner.waiting()
    }

    fn saw_event(&self) -> bool {
        self.saw_event
    }

    /// Whether `[DONE]` has passed.
    fn saw_done(&self) -> bool {
        self.done
    }

    fn is_cut(&self) -> bool {
        self.cut
    }
}

#[cfg(test)]
#[path = "stream_bound_tests.rs"]
mod bound_tests;
#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
