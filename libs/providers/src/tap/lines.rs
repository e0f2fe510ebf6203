//! Newline-delimited JSON as bytes: one value a line.

use bytes::{Buf, Bytes, BytesMut};

use crate::sse::{EventTooLarge, MAX_EVENT_BYTES};

/// Cuts a stream into lines, keeping its state from one read to the next.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    scanned: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The bytes of a line that has not ended.
    pub(crate) fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// The next line that is complete and not blank, without its end.
    pub(crate) fn next_line(&mut self) -> Result<Option<Bytes>, EventTooLarge> {
        loop {
            let rest = self.buffer.get(self.scanned..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', rest) else {
                self.scanned = self.buffer.len();
                return if self.buffer.len() > MAX_EVENT_BYTES { Err(EventTooLarge) } else { Ok(None) };
            };
            let line = self.buffer.split_to(self.scanned + at).freeze();
            self.buffer.advance(1);
            self.scanned = 0;
            if line.len() > MAX_EVENT_BYTES {
                return Err(EventTooLarge);
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    /// What came after the last complete line.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        self.scanned = 0;
        self.buffer.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dialect::golden::cut;

    fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece);
            while let Some(line) = lines.next_line().unwrap() {
                found.push(line.trim_ascii().to_vec());
            }
        }
        found.push(lines.take_rest().to_vec());
        found
    }

    #[test]
    fn blank_lines_are_nothing_and_the_rest_is_kept() {
        assert_eq!(lines(&[b"{}\r\n\n \n[1", b"]\n7"]), [b"{}".as_slice(), b"[1]", b"7"]);
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_lines(text in "[a\n\ré]{0,60}", places in proptest::collection::vec(any::<usize>(), 0..8)) {
            let bytes = text.as_bytes();
            let pieces = cut(bytes, &places);
            prop_assert_eq!(lines(&pieces), lines(&[bytes]));
        }
    }
}
