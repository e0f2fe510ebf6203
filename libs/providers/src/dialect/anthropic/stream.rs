//! A stream of the same dialect on its way through: the provider's bytes with splices, and a tally of what went by.

use std::collections::BTreeSet;

use bytes::BytesMut;
use domain::Secret;

use super::answer::splice_model;
use super::error::failure;
use super::reader::MessageReader;
use super::writer::{ended, event, own_event};
use crate::dialect::openai::{SpliceRules, StreamOutcome};
use crate::error::UpstreamError;
use crate::hub::{Event, Finish, Reader, Tally, Told};
use crate::json::{Members, Splices, object, text_of};
use crate::sse::{self, MAX_EVENT_BYTES, Piece, Scanner};
use crate::tap::Tap;
use crate::usage::Usage;

/// Passes a provider's stream of messages on.
#[derive(Debug)]
pub(crate) struct MessageTap {
    scanner: Scanner,
    rules: SpliceRules,
    reader: MessageReader,
    tally: Tally,
    member_due: bool,
    at_start: bool,
    saw_event: bool,
    /// The blocks that have begun and not ended.
    open: BTreeSet<u64>,
    cut: bool,
}

impl MessageTap {
    /// A tap for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(rules: SpliceRules, credential: Option<Secret>) -> Self {
        Self {
            scanner: Scanner::default(),
            reader: MessageReader::new(credential),
            tally: Tally::new(rules.bound),
            member_due: rules.member.is_some(),
            rules,
            at_start: true,
            saw_event: false,
            open: BTreeSet::new(),
            cut: false,
        }
    }

    fn block(&mut self, block: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        let read = sse::Event::read(block, std::mem::take(&mut self.at_start));
        let Ok((text, data)) = object(&read.data) else {
            self.saw_event |= read.has_data();
            out.extend_from_slice(block);
            return Ok(());
        };
        let name = read.name.and_then(|name| std::str::from_utf8(name).ok());
        let mut events = Vec::new();
        self.reader.read(name, &read.data, &mut events)?;
        if !events.iter().all(|event| self.tally.take(event)) {
            self.cut_here(out);
            return Ok(());
        }
        let kind = data.present("type").and_then(text_of);
        let kind = kind.as_deref().or(name).unwrap_or_default();
        // What comes before it may still be given up for another try.
        self.saw_event |= kind != "ping";
        match (kind, data.present("index").and_then(|value| value.get().parse().ok())) {
            ("content_block_start", Some(index)) => {
                self.open.insert(index);
            }
            ("content_block_stop", Some(index)) => {
                self.open.remove(&index);
            }
            ("message_stop", _) => self.write_member(out),
            ("message_start", _) => {
                let message = data.present("message").and_then(|value| Members::parse(value.get()).ok());
                let mut splices = Splices::default();
                if let Some(message) = message {
                    splice_model(&mut splices, text, &message, &self.rules.public_model);
                }
                if !splices.is_empty() {
                    out.extend_from_slice(&read.edited(splices));
                    return Ok(());
                }
            }
            _ => {}
        }
        out.extend_from_slice(block);
        Ok(())
    }

    /// Ends the answer before an event that would take it over its bound.
    fn cut_here(&mut self, out: &mut BytesMut) {
        for index in std::mem::take(&mut self.open) {
            event("content_block_stop", &format!(",\"index\":{index}"), out);
        }
        self.tally.take(&Event::Finish(Finish::Length));
        let prompt = self.rules.bound.map_or(0, |bound| i64::try_from(bound.prompt_tokens).unwrap_or(i64::MAX));
        let counted = self.tally.counted().map_or(0, |tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
        let reported = self.tally.usage().or_else(|| self.reader.usage_so_far());
        let usage = reported
            .map_or(Usage { prompt_tokens: prompt, completion_tokens: counted, ..Usage::default() }, |usage| {
                usage.filled(prompt, counted)
            });
        let member = self.rules.member.as_ref().filter(|_| std::mem::take(&mut self.member_due));
        ended("max_tokens", None, Some(usage), member.map(|(name, value)| (*name, value.as_str())), out);
        self.cut = true;
    }

    fn write_member(&mut self, out: &mut BytesMut) {
        if let Some((name, value)) = self.rules.member.as_ref().filter(|_| std::mem::take(&mut self.member_due)) {
            own_event(name, value, out);
        }
    }
}

impl Tap for MessageTap {
    fn push(&mut self, arrived: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        self.scanner.push(arrived);
        while !self.cut {
            let piece = self.scanner.next_piece();
            match piece.map_err(|_| UpstreamError::TooLarge { limit_bytes: MAX_EVENT_BYTES as u64 })? {
                None => return Ok(()),
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
        let event = sse::Event::read(&rest, self.at_start);
        let before = out.len();
        if event.is_only_comments() || object(&event.data).is_ok() {
            self.block(&rest, out)?;
        }
        let complete = self.is_complete();
        if (self.member_due || !complete) && out.len() > before {
            out.extend_from_slice(b"\n\n");
        }
        if !complete {
            return Err(UpstreamError::Truncated);
        }
        self.write_member(out);
        Ok(())
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

    fn saw_done(&self) -> bool {
        self.cut || self.reader.is_over()
    }

    fn is_cut(&self) -> bool {
        self.cut
    }

    /// Clients of this API wait for its last event, without which no answer is whole.
    fn is_complete(&self) -> bool {
        self.cut || self.reader.is_over()
    }

    fn outcome(&self) -> StreamOutcome {
        let outcome = self.tally.outcome(self.is_complete());
        StreamOutcome { usage: outcome.usage.or_else(|| self.reader.usage_so_far()), ..outcome }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
