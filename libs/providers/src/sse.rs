//! Server-sent events as bytes: where one event ends, and where its data lies.
//!
//! Follows the event stream format of the HTML standard (section 9.2.6): lines end with LF, CRLF or CR, the stream may
//! begin with a byte order mark, one space after a field's colon is optional, lines that begin with a colon are
//! comments. Nothing is decoded here, so a character cut in two by the network is never looked at.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

use crate::json::Splices;

/// The largest event, in bytes. Past it the stream is given up rather than buffered.
pub(crate) const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// An event was larger than [`MAX_EVENT_BYTES`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EventTooLarge;

/// A piece of the stream. All pieces together are exactly the bytes that came in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The lines up to and including a blank one.
    Block(Bytes),
    /// The LF of a CRLF whose CR ended the block before: it arrived with the next read.
    LateLf,
}

/// Cuts a stream into blocks, keeping its state from one read to the next.
#[derive(Debug)]
pub(crate) struct Scanner {
    buffer: BytesMut,
    scanned: usize,
    line_is_empty: bool,
    after_cr: bool,
    late_lf_possible: bool,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, line_is_empty: true, after_cr: false, late_lf_possible: false }
    }
}

impl Scanner {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece that is complete.
    ///
    /// A block that ends with CR is given out at once: waiting for a possible LF would hold back every event of a
    /// stream that ends its lines with CR alone.
    pub(crate) fn next_piece(&mut self) -> Result<Option<Piece>, EventTooLarge> {
        loop {
            let rest = self.buffer.get(self.scanned..).unwrap_or_default();
            let Some(first) = rest.first() else { return self.wait() };
            if std::mem::take(&mut self.after_cr) {
                let late = std::mem::take(&mut self.late_lf_possible);
                if *first == b'\n' {
                    if late {
                        self.buffer.advance(1);
                        return Ok(Some(Piece::LateLf));
                    }
                    self.scanned += 1;
                    continue;
                }
            }
            let Some(at) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.line_is_empty = false;
                self.scanned = self.buffer.len();
                return self.wait();
            };
            let is_cr = rest.get(at) == Some(&b'\r');
            let next = rest.get(at + 1).copied();
            self.scanned += at + 1;
            if at > 0 || !self.line_is_empty {
                self.line_is_empty = true;
                self.after_cr = is_cr;
                continue;
            }
            if is_cr && next == Some(b'\n') {
                self.scanned += 1;
            } else if is_cr && next.is_none() {
                self.after_cr = true;
                self.late_lf_possible = true;
            }
            let block = self.buffer.split_to(self.scanned).freeze();
            self.scanned = 0;
            return if block.len() > MAX_EVENT_BYTES { Err(EventTooLarge) } else { Ok(Some(Piece::Block(block))) };
        }
    }

    /// The bytes after the last block that was complete.
    pub(crate) fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// What came after the last complete block.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        self.scanned = 0;
        self.buffer.split().freeze()
    }

    fn wait(&self) -> Result<Option<Piece>, EventTooLarge> {
        if self.buffer.len() > MAX_EVENT_BYTES { Err(EventTooLarge) } else { Ok(None) }
    }
}

/// A line of data within a block.
#[derive(Debug)]
struct Line {
    /// Where the line's value begins in the joined data.
    data_start: usize,
    /// Where it lies in the block.
    raw: Range<usize>,
}

/// The fields of one block that matter here.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    raw: &'a [u8],
    /// The values of all data lines, joined with LF.
    pub(crate) data: Cow<'a, [u8]>,
    /// The value of the last `event` line.
    pub(crate) name: Option<&'a [u8]>,
    lines: Vec<Line>,
    comments: Vec<Range<usize>>,
    other_fields: bool,
}

impl<'a> Event<'a> {
    /// Reads a block. `first` says that it begins the stream, where a byte order mark may stand.
    pub(crate) fn read(raw: &'a [u8], first: bool) -> Self {
        let mut event = Self {
            raw,
            data: Cow::Borrowed(&[]),
            name: None,
            lines: Vec::new(),
            comments: Vec::new(),
            other_fields: false,
        };
        let mut at = if first && raw.starts_with(BOM) { BOM.len() } else { 0 };
        while at < raw.len() {
            let rest = raw.get(at..).unwrap_or_default();
            let length = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let line = rest.get(..length).unwrap_or_default();
            let ending = match (rest.get(length), rest.get(length + 1)) {
                (Some(b'\r'), Some(b'\n')) => 2,
                (Some(_), _) => 1,
                (None, _) => 0,
            };
            event.read_line(line, at, at + length + ending);
            at += length + ending;
        }
        event
    }

    fn read_line(&mut self, line: &'a [u8], start: usize, end: usize) {
        if line.is_empty() {
            return;
        }
        if line.starts_with(b":") {
            self.comments.push(start..end);
            return;
        }
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => (line.get(..colon).unwrap_or_default(), line.get(colon + 1..).unwrap_or_default()),
            None => (line, [].as_slice()),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if name != b"data" {
            if name == b"event" {
                self.name = Some(value);
            }
            self.other_fields = true;
            return;
        }
        let raw_start = start + line.len() - value.len();
        let data_start = if self.lines.is_empty() {
            self.data = Cow::Borrowed(value);
            0
        } else {
            let data = self.data.to_mut();
            data.push(b'\n');
            let data_start = data.len();
            data.extend_from_slice(value);
            data_start
        };
        self.lines.push(Line { data_start, raw: raw_start..raw_start + value.len() });
    }

    /// Whether there is a data line.
    pub(crate) fn has_data(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Whether there is nothing but comments and line ends.
    pub(crate) fn is_only_comments(&self) -> bool {
        self.lines.is_empty() && !self.other_fields
    }

    /// The comment lines of the block, which stay when the event itself is dropped.
    pub(crate) fn comments(&self) -> impl Iterator<Item = &'a [u8]> {
        let raw = self.raw;
        self.comments.iter().filter_map(move |range| raw.get(range.clone()))
    }

    /// The block with edits of its data applied. An edit that spans lines is cut at their ends, so that the line
    /// structure stays; between JSON tokens a line end is only white space.
    pub(crate) fn edited(&self, splices: Splices) -> Vec<u8> {
        let mut mapped = Splices::default();
        for (range, with) in splices.into_sorted() {
            let mut with = Some(with);
            for line in &self.lines {
                let length = line.raw.len();
                let from = range.start.max(line.data_start);
                let to = range.end.min(line.data_start + length);
                let empty_here =
                    range.is_empty() && (line.data_start..=line.data_start + length).contains(&range.start);
                if from < to || (empty_here && with.is_some()) {
                    let offset = |at: usize| line.raw.start + at.saturating_sub(line.data_start);
                    mapped.replace(offset(from)..offset(to.max(from)), with.take().unwrap_or_default());
                }
            }
        }
        mapped.apply(self.raw)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dialect::golden::cut;

    /// Every piece, and the data of every event.
    fn scan(chunks: &[&[u8]]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut scanner = Scanner::default();
        let (mut bytes, mut events, mut first) = (Vec::new(), Vec::new(), true);
        for chunk in chunks {
            scanner.push(chunk);
            while let Some(piece) = scanner.next_piece().unwrap() {
                match piece {
                    Piece::LateLf => bytes.push(b'\n'),
                    Piece::Block(block) => {
                        let event = Event::read(&block, std::mem::take(&mut first));
                        if event.has_data() {
                            events.push(event.data.to_vec());
                        }
                        bytes.extend_from_slice(&block);
                    }
                }
            }
        }
        bytes.extend_from_slice(&scanner.take_rest());
        (bytes, events)
    }

    #[test]
    fn every_line_end_and_spelling_gives_the_same_events() {
        for text in [
            "data: a\n\ndata: b\ndata:c\n\n",
            "data: a\r\n\r\ndata: b\r\ndata:c\r\n\r\n",
            "data: a\r\rdata: b\rdata:c\r\r",
            "\u{feff}data:a\n\n: ping\n\nevent: x\ndata: b\nid: 7\ndata: c\n\n",
            "data: a\n\r\n\n\ndata: b\r\ndata: c\n\r",
        ] {
            let (bytes, events) = scan(&[text.as_bytes()]);
            assert_eq!(bytes, text.as_bytes());
            assert_eq!(events, [b"a".to_vec(), b"b\nc".to_vec()], "{text:?}");
        }
    }

    #[test]
    fn a_block_ending_with_cr_does_not_wait_for_more() {
        let mut scanner = Scanner::default();
        scanner.push(b"data: a\r\r");
        assert_eq!(scanner.next_piece().unwrap(), Some(Piece::Block(Bytes::from_static(b"data: a\r\r"))));
        scanner.push(b"\ndata: b\r\n\r");
        assert_eq!(scanner.next_piece().unwrap(), Some(Piece::LateLf));
        assert_eq!(scanner.next_piece().unwrap(), Some(Piece::Block(Bytes::from_static(b"data: b\r\n\r"))));
        assert_eq!(scanner.next_piece().unwrap(), None);
    }

    #[test]
    fn an_event_beyond_the_bound_is_an_error_and_one_at_it_is_not() {
        let mut event = vec![b'x'; MAX_EVENT_BYTES - 8];
        event.splice(..0, *b"data: ");
        event.extend_from_slice(b"\n\n");
        let mut scanner = Scanner::default();
        scanner.push(&event);
        assert!(matches!(scanner.next_piece(), Ok(Some(Piece::Block(block))) if block.len() == MAX_EVENT_BYTES));
        scanner.push(&vec![b'x'; MAX_EVENT_BYTES + 1]);
        assert_eq!(scanner.next_piece(), Err(EventTooLarge));
    }

    #[test]
    fn an_edit_across_data_lines_keeps_the_lines() {
        let raw = b"data: {\"a\":1,\r\ndata:\"u\":{\r\ndata: }}\r\n\r\n";
        let event = Event::read(raw, true);
        assert_eq!(&*event.data, b"{\"a\":1,\n\"u\":{\n}}");
        let mut splices = Splices::default();
        splices.remove(6..event.data.len() - 1);
        assert_eq!(event.edited(splices), b"data: {\"a\":1\r\ndata:\r\ndata: }\r\n\r\n");
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_bytes_and_events(
            text in "(\u{feff})?(data: ?[aé\u{1F600}]{0,3}|data|:c|event: x|\r|\n|\r\n){0,40}",
            places in proptest::collection::vec(any::<usize>(), 0..12),
        ) {
            let whole = scan(&[text.as_bytes()]);
            prop_assert_eq!(&whole.0, text.as_bytes());
            prop_assert_eq!(scan(&cut(text.as_bytes(), &places)), whole);
        }
    }
}
