//! A stream in another dialect than the client's.

use bytes::{Bytes, BytesMut};

use super::{Lines, Retelling, Tap};
use crate::dialect::openai::{OutputBound, StreamOutcome};
use crate::error::UpstreamError;
use crate::hub::{Event, Finish, Reader, Tally, Told, Writer};
use crate::sse::{self, MAX_EVENT_BYTES, Piece, Scanner};

/// How a provider's stream is cut into events.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Server-sent events.
    Events(Scanner),
    /// One JSON value a line.
    Lines(Lines),
}

/// Reads events of one dialect and writes them in another.
#[derive(Debug)]
pub(crate) struct Translated {
    framing: Framing,
    reader: Box<dyn Reader>,
    writer: Box<dyn Writer>,
    tally: Tally,
    member: Option<(&'static str, String)>,
    retelling: Retelling,
    at_start: bool,
    saw_event: bool,
    ended: bool,
    cut: bool,
}

impl Translated {
    pub(crate) fn new(
        framing: Framing,
        reader: Box<dyn Reader>,
        writer: Box<dyn Writer>,
        bound: Option<OutputBound>,
        member: Option<(&'static str, String)>,
        retelling: Retelling,
    ) -> Self {
        Self {
            framing,
            reader,
            writer,
            tally: Tally::new(bound),
            member,
            retelling,
            at_start: true,
            saw_event: false,
            ended: false,
            cut: false,
        }
    }

    /// The next event that has arrived whole.
    fn next_block(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let too_large = UpstreamError::TooLarge { limit_bytes: MAX_EVENT_BYTES as u64 };
        match &mut self.framing {
            Framing::Lines(lines) => lines.next_line().map_err(|_| too_large),
            Framing::Events(scanner) => loop {
                match scanner.next_piece() {
                    Err(_) => return Err(too_large),
                    Ok(Some(Piece::LateLf)) => {}
                    Ok(Some(Piece::Block(block))) => return Ok(Some(block)),
                    Ok(None) => return Ok(None),
                }
            },
        }
    }

    fn block(&mut self, block: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        let mut events = Vec::new();
        match &self.framing {
            Framing::Lines(_) => self.reader.read(None, block, &mut events)?,
            Framing::Events(_) => {
                let event = sse::Event::read(block, std::mem::take(&mut self.at_start));
                if !event.has_data() {
                    return Ok(());
                }
                let name = event.name.and_then(|name| std::str::from_utf8(name).ok());
                self.reader.read(name, &event.data, &mut events)?;
                let events = self.retelling.retell(events);
                return self.take(&events, out);
            }
        }
        let events = self.retelling.retell(events);
        self.take(&events, out)
    }

    fn take(&mut self, events: &[Event<'_>], out: &mut BytesMut) -> Result<(), UpstreamError> {
        self.saw_event |= !events.is_empty();
        for event in events {
            if !self.tally.take(event) {
                self.end_at_bound(out);
                return Ok(());
            }
            self.writer.write(event, out);
            if self.writer.is_overfull() {
                return Err(UpstreamError::TooLarge { limit_bytes: MAX_EVENT_BYTES as u64 });
            }
        }
        if self.reader.is_over() {
            self.end(out);
        }
        Ok(())
    }

    fn end_at_bound(&mut self, out: &mut BytesMut) {
        let finish = Event::Finish(Finish::Length);
        self.tally.take(&finish);
        self.writer.write(&finish, out);
        let usage = self.tally.usage_at_bound(self.reader.usage_so_far());
        if let Some(usage) = usage {
            self.writer.write(&Event::Usage(usage), out);
        }
        self.end(out);
        self.cut = true;
    }

    fn end(&mut self, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.ended, true) {
            self.writer.end(self.member.as_ref().map(|(name, value)| (*name, value.as_str())), out);
        }
    }
}

impl Tap for Translated {
    fn push(&mut self, arrived: &[u8], out: &mut BytesMut) -> Result<(), UpstreamError> {
        match &mut self.framing {
            Framing::Events(scanner) => scanner.push(arrived),
            Framing::Lines(lines) => lines.push(arrived),
        }
        while !self.ended {
            let Some(block) = self.next_block()? else { return Ok(()) };
            self.block(&block, out)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut BytesMut) -> Result<(), UpstreamError> {
        if self.ended {
            return Ok(());
        }
        let rest = match &mut self.framing {
            Framing::Events(scanner) => scanner.take_rest(),
            Framing::Lines(lines) => lines.take_rest(),
        };
        // Half an event says nothing; a whole one may only lack its end.
        if !rest.trim_ascii().is_empty() {
            let is_json = |data: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok();
            let is_whole = match &self.framing {
                Framing::Lines(_) => is_json(&rest),
                Framing::Events(_) => {
                    let event = sse::Event::read(&rest, self.at_start);
                    &*event.data == b"[DONE]" || is_json(&event.data)
                }
            };
            if is_whole {
                self.block(&rest, out)?;
            }
        }
        if self.ended {
            return Ok(());
        }
        if !self.reader.is_complete() {
            return Err(UpstreamError::Truncated);
        }
        self.end(out);
        Ok(())
    }

    fn fail(&mut self, told: &Told<'_>, out: &mut BytesMut) {
        self.ended = true;
        self.writer.fail(told, out);
    }

    fn waiting(&self) -> usize {
        match &self.framing {
            Framing::Events(scanner) => scanner.waiting(),
            Framing::Lines(lines) => lines.waiting(),
        }
    }

    fn kept(&self) -> usize {
        self.writer.kept()
    }

    fn saw_event(&self) -> bool {
        self.saw_event
    }

    fn saw_done(&self) -> bool {
        self.ended
    }

    fn is_cut(&self) -> bool {
        self.cut
    }

    fn is_complete(&self) -> bool {
        self.ended || self.reader.is_complete()
    }

    fn outcome(&self) -> StreamOutcome {
        let outcome = self.tally.outcome(self.is_complete());
        StreamOutcome { usage: outcome.usage.or_else(|| self.reader.usage_so_far()), ..outcome }
    }
}
