//! A stream of the same dialect on its way through: the provider's bytes with splices, and a tally of what went by.

use std::sync::Arc;

use bytes::BytesMut;
use domain::Secret;
use serde_json::{Value, json};

use super::answer::splice_response;
use super::echo::Echo;
use super::error::{failure, told_error};
use super::event::{event, own_event, told};
use super::kept::Kept;
use super::reader::ResponseReader;
use crate::dialect::openai::{SpliceRules, StreamOutcome};
use crate::error::UpstreamError;
use crate::hub::{Event, Finish, Reader, Tally, Told};
use crate::json::{Members, Splices, object, text_of};
use crate::sse::{self, MAX_EVENT_BYTES, Piece, Scanner};
use crate::tap::Tap;
use crate::usage::Usage;

/// Passes a provider's stream of a response on.
#[derive(Debug)]
pub(crate) struct ResponseTap {
    scanner: Scanner,
    rules: SpliceRules,
    echo: Arc<Echo>,
    reader: ResponseReader,
    tally: Tally,
    member_due: bool,
    at_start: bool,
    saw_event: bool,
    /// The number of the event that comes next.
    number: u64,
    /// The answer as the provider's first event had it.
    response: Option<Box<serde_json::value::RawValue>>,
    /// Only where the answer may be ended here.
    kept: Option<Kept>,
    cut: bool,
}

impl ResponseTap {
    /// A tap for one stream. The credential is only needed to keep it out of error messages.
    pub(crate) fn new(rules: SpliceRules, credential: Option<Secret>) -> Self {
        Self {
            scanner: Scanner::default(),
            reader: ResponseReader::new(credential),
            tally: Tally::new(rules.bound),
            member_due: rules.member.is_some(),
            kept: rules.bound.map(|_| Kept::default()),
            echo: rules.echo.clone().unwrap_or_default(),
            rules,
            at_start: true,
            saw_event: false,
            number: 0,
            response: None,
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
        self.saw_event = true;
        if !events.iter().all(|event| self.tally.take(event)) {
            self.cut_here(out);
            return Ok(());
        }
        let number = data.present("sequence_number").and_then(|value| value.get().parse::<u64>().ok());
        self.number = number.unwrap_or(self.number).saturating_add(1);
        if let Some(kept) = &mut self.kept {
            let kind = data.present("type").and_then(text_of);
            kept.take(kind.as_deref().or(name).unwrap_or_default(), &serde_json::from_str(text).unwrap_or_default());
        }
        if self.reader.is_over() {
            self.write_member(out);
        }
        let mut splices = Splices::default();
        if let Some(raw) = data.present("response")
            && let Ok(response) = Members::parse(raw.get())
        {
            splice_response(&mut splices, text, &response, &self.rules.public_model, &self.echo);
            self.response.get_or_insert_with(|| raw.to_owned());
        }
        if splices.is_empty() {
            out.extend_from_slice(block);
        } else {
            out.extend_from_slice(&read.edited(splices));
        }
        Ok(())
    }

    /// Ends the answer before an event that would take it over its bound.
    fn cut_here(&mut self, out: &mut BytesMut) {
        if let Some(kept) = &mut self.kept {
            kept.close(&mut self.number, out);
        }
        self.tally.take(&Event::Finish(Finish::Length));
        let prompt = self.rules.bound.map_or(0, |bound| i64::try_from(bound.prompt_tokens).unwrap_or(i64::MAX));
        let counted = self.tally.counted().map_or(0, |tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
        let usage = Usage { prompt_tokens: prompt, completion_tokens: counted, ..Usage::default() };
        self.write_member(out);
        let details = json!({ "reason": "max_output_tokens" });
        self.last("incomplete", [("incomplete_details", details), ("usage", told(usage))], out);
        self.cut = true;
    }

    /// Tells an end of our own: the provider's answer as it began, with what has become of it since.
    fn last<const N: usize>(&mut self, status: &str, members: [(&str, Value); N], out: &mut BytesMut) {
        let begun = self.response.as_ref().and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let mut response = begun.filter(Value::is_object).unwrap_or_else(|| json!({ "object": "response" }));
        if let Some(response) = response.as_object_mut() {
            response.insert("model".to_owned(), self.rules.public_model.as_str().into());
            let instructions = serde_json::from_str(&self.echo.instructions).unwrap_or_default();
            response.insert("instructions".to_owned(), instructions);
            response.insert("status".to_owned(), status.into());
            let output = self.kept.as_ref().map_or_else(|| json!([]), Kept::output);
            response.insert("output".to_owned(), output);
            response.extend(members.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        event(&format!("response.{status}"), self.number, &format!(",\"response\":{response}"), out);
        self.number += 1;
    }

    fn write_member(&mut self, out: &mut BytesMut) {
        if let Some((name, value)) = self.rules.member.as_ref().filter(|_| std::mem::take(&mut self.member_due)) {
            own_event(name, value, out);
        }
    }
}

impl Tap for ResponseTap {
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
        if self.is_complete() {
            return Ok(());
        }
        if out.len() > before {
            out.extend_from_slice(b"\n\n");
        }
        Err(UpstreamError::Truncated)
    }

    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut) {
        if self.response.is_none() {
            out.extend_from_slice(&failure(told));
            return;
        }
        let error = serde_json::from_str(&told_error(told)).unwrap_or_default();
        self.last("failed", [("error", error)], out);
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

    fn is_complete(&self) -> bool {
        self.cut || self.reader.is_complete()
    }

    fn outcome(&self) -> StreamOutcome {
        self.tally.outcome(self.is_complete())
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
