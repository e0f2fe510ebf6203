//! A body out of its frame (RFC 9112, 7.1).

use anyhow::{Context as _, bail};
use bytes::{Buf as _, BytesMut};
use memchr::memchr;

use super::Framing;

/// How far a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// So many bytes are still to come.
    Left(usize),
    /// All until the connection closes.
    UntilClose,
    /// The line with a chunk's size comes next.
    Size,
    /// So many bytes of a chunk, then its line end.
    Chunk(usize),
    /// Lines after the last chunk.
    Trailer,
}

impl Pieces {
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Left(length),
            Framing::Chunked => Self::Size,
            Framing::Close => Self::UntilClose,
        }
    }

    /// Hands the body's bytes in `buffer` over and takes them out. True when the body is complete.
    ///
    /// # Errors
    /// When the frame is broken.
    pub(crate) fn take(&mut self, buffer: &mut BytesMut, mut give: impl FnMut(&[u8])) -> anyhow::Result<bool> {
        loop {
            match *self {
                Self::Left(0) => return Ok(true),
                Self::Left(left) => {
                    let now = left.min(buffer.len());
                    if now == 0 {
                        return Ok(false);
                    }
                    give(buffer.get(..now).unwrap_or_default());
                    buffer.advance(now);
                    *self = Self::Left(left - now);
                }
                Self::UntilClose => {
                    if !buffer.is_empty() {
                        give(buffer);
                        buffer.clear();
                    }
                    return Ok(false);
                }
                Self::Size => {
                    let Some(line) = line(buffer)? else { return Ok(false) };
                    let size = line.split(';').next().unwrap_or_default().trim();
                    let size = usize::from_str_radix(size, 16).with_context(|| format!("a chunk's size: {size:?}"))?;
                    *self = if size == 0 { Self::Trailer } else { Self::Chunk(size) };
                }
                Self::Chunk(0) => {
                    let Some(rest) = line(buffer)? else { return Ok(false) };
                    if !rest.is_empty() {
                        bail!("a chunk is longer than it says");
                    }
                    *self = Self::Size;
                }
                Self::Chunk(left) => {
                    let now = left.min(buffer.len());
                    if now == 0 {
                        return Ok(false);
                    }
                    give(buffer.get(..now).unwrap_or_default());
                    buffer.advance(now);
                    *self = Self::Chunk(left - now);
                }
                Self::Trailer => match line(buffer)? {
                    Some(line) if line.is_empty() => {
                        *self = Self::Left(0);
                    }
                    Some(_) => {}
                    None => return Ok(false),
                },
            }
        }
    }
}

/// Takes a line out, without its end.
fn line(buffer: &mut BytesMut) -> anyhow::Result<Option<String>> {
    let Some(end) = memchr(b'\n', buffer) else { return Ok(None) };
    let line = buffer.split_to(end + 1);
    let text = std::str::from_utf8(&line).context("a chunk's line is no text")?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body, fed in pieces of `size`, and whether it was complete.
    fn read(framing: Framing, bytes: &[u8], size: usize) -> anyhow::Result<(String, bool)> {
        let (mut pieces, mut buffer, mut body, mut done) = (Pieces::new(framing), BytesMut::new(), Vec::new(), false);
        for part in bytes.chunks(size) {
            buffer.extend_from_slice(part);
            done = pieces.take(&mut buffer, |piece| body.extend_from_slice(piece))?;
        }
        Ok((String::from_utf8(body)?, done))
    }

    #[test]
    fn chunks_come_out_whole_however_they_arrive() {
        let wire = b"5\r\nhello\r\nA;x=y\r\n, world!!!\r\n0\r\nTrailer: x\r\n\r\n";
        for size in 1..=wire.len() {
            assert_eq!(read(Framing::Chunked, wire, size).unwrap(), ("hello, world!!!".to_owned(), true), "{size}");
        }
        assert!(!read(Framing::Chunked, wire.get(..40).unwrap(), 3).unwrap().1);
    }

    #[test]
    fn a_length_is_kept_to() {
        assert_eq!(read(Framing::Length(5), b"hello", 2).unwrap(), ("hello".to_owned(), true));
        assert_eq!(read(Framing::Length(6), b"hello", 2).unwrap(), ("hello".to_owned(), false));
        assert_eq!(read(Framing::Close, b"hello", 2).unwrap(), ("hello".to_owned(), false));
    }

    #[test]
    fn a_broken_frame_is_an_error() {
        for wire in ["x\r\n", "2\r\nabc\r\n"] {
            assert!(read(Framing::Chunked, wire.as_bytes(), 100).is_err(), "{wire:?}");
        }
    }
}
