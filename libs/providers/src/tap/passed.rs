//! A stream in the client's own dialect, other than Chat's: the provider's bytes with splices, and a tally of what went by.

use std::fmt;

use bytes::BytesMut;

use super::Tap;
use crate::dialect::openai::{SpliceRules, StreamOutcome};
use crate::error::UpstreamError;
use crate::hub::{Event, Finish, Reader, Tally, Told};
use crate::json::{Members, Splices, object, text_of};
use crate::sse::{self, MAX_EVENT_BYTES, Piece, Scanner};
use crate::usage::Usage;

/// A member of ours, name and JSON.
pub(crate) type Member<'a> = (&'a str, &'a str);

/// What a dialect has to do with a stream that it passes on.
pub(crate) trait Passing: fmt::Debug + Send {
    /// Takes note of an event that stays in the stream and gives the edits of its data. `text` is that data, `kind` its
    /// type.
    fn pass(&mut self, kind: &str, text: &str, data: &Members<'_>, rules: &SpliceRules) -> Splices;

    /// The bytes of the answer that it keeps.
    fn kept(&self) -> usize {
        0
    }

    /// Appends a member of ours as an event.
    fn tell(&self, member: Member<'_>, out: &mut BytesMut);

    /// Ends the answer at its bound: closes what is open, tells the member that is still due, and the end.
    fn end_at_bound(&mut self, usage: Usage, member: Option<Member<'_>>, rules: &SpliceRules, out: &mut BytesMut);

    /// Appends the end of an answer that failed.
    fn fail(&mut self, told: &Told<'_>, rules: &SpliceRules, out: &mut BytesMut);
}

/// Passes a provider's stream on. It is whole with the dialect's last event and no earlier: clients wait for it.
#[derive(Debug)]
pub(crate) struct Passed {
    scanner: Scanner,
    reader: Box<dyn Reader>,
    passing: Box<dyn Passing>,
    rules: SpliceRules,
    tally: Tally,
    member_due: bool,
    at_start: bool,
    saw_event: bool,
    cut: bool,
}

impl Passed {
    pub(crate) fn new(reader: Box<dyn Reader>, passing: Box<dyn Passing>, rules: SpliceRules) -> Self {
        Self {
            scanner: Scanner::default(),
            reader,
            passing,
            tally: Tally::new(rules.bound),
            member_due: rules.member.is_some(),
            rules,
            at_start: true,
            saw_event: false,
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
        let kind = data.present("type").and_then(text_of);
        let kind = kind.as_deref().or(name).unwrap_or_default();
        let mut events = Vec::new();
        self.reader.read(name, &read.data, &mut events)?;
        // After nothing but these the call may still be given up for another try.
        self.saw_event |= kind != "ping";
        if !events.iter().all(|event| self.tally.take(event)) {
            self.end_at_bound(out);
            return Ok(());
        }
        if self.reader.is_over()
            && let Some(member) = due(&self.rules, &mut self.member_due)
        {
            self.passing.tell(member, out);
        }
        let splices = self.passing.pass(kind, text, &data, &self.rules);
        if splices.is_empty() {
            out.extend_from_slice(block);
        } else {
            out.extend_from_slice(&read.edited(splices));
        }
        Ok(())
    }

    /// Ends the answer before an event that would take it over its bound.
    fn end_at_bound(&mut self, out: &mut BytesMut) {
        self.tally.take(&Event::Finish(Finish::Length));
        let usage = self.tally.usage_at_bound(self.reader.usage_so_far()).unwrap_or_default();
        let member = due(&self.rules, &mut self.member_due);
        self.passing.end_at_bound(usage, member, &self.rules, out);
        self.cut = true;
    }
}

/// The member that was asked for, once.
fn due<'a>(rules: &'a SpliceRules, is_due: &mut bool) -> Option<Member<'a>> {
    let (name, value) = rules.member.as_ref().filter(|_| std::mem::take(is_due))?;
    Some((*name, value.as_str()))
}

impl Tap for Passed {
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
        self.passing.fail(told, &self.rules, out);
    }

    fn waiting(&self) -> usize {
        self.scanner.waiting()
    }

    fn kept(&self) -> usize {
        self.passing.kept()
    }

    fn saw_event(&self) -> bool {
        self.saw_event
    }

    fn saw_done(&self) -> bool {
        self.is_complete()
    }

    fn is_cut(&self) -> bool {
        self.cut
    }

    fn is_complete(&self) -> bool {
        self.cut || self.reader.is_over()
    }

    fn outcome(&self) -> StreamOutcome {
        let outcome = self.tally.outcome(self.is_complete());
        StreamOutcome { usage: outcome.usage.or_else(|| self.reader.usage_so_far()), ..outcome }
    }
}
