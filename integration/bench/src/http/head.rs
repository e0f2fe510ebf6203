//! The head of an answer (RFC 9112, 4 and 6).

use anyhow::{Context as _, bail};
use memchr::memmem;

/// What of a head matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The status.
    pub(crate) status: u16,
    /// Where the body ends.
    pub(crate) framing: Framing,
    /// Whether the connection is of no use after it.
    pub(crate) closes: bool,
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// After so many bytes.
    Length(usize),
    /// After the last chunk.
    Chunked,
    /// With the connection.
    Close,
}

impl Head {
    /// Reads the head at the beginning of `bytes`; with it comes its length. `None` while it is not complete.
    ///
    /// # Errors
    /// When it is no HTTP.
    pub(crate) fn parse(bytes: &[u8]) -> anyhow::Result<Option<(Self, usize)>> {
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let text = std::str::from_utf8(bytes.get(..end).unwrap_or_default()).context("a head that is no text")?;
        let mut lines = text.split("\r\n");
        let status = lines.next().unwrap_or_default();
        let Some((version, status)) = status.split_once(' ') else { bail!("not a status line: {status}") };
        let status = status.get(..3).and_then(|code| code.parse().ok()).context("a status that is no number")?;
        let mut head = Self { status, framing: Framing::Close, closes: version != "HTTP/1.1" };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { bail!("not a header: {line}") };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                head.framing = Framing::Length(value.parse().context("a length that is no number")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                head.framing = Framing::Chunked;
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                head.closes = true;
            }
        }
        if head.framing == Framing::Close {
            head.closes = true;
        }
        Ok(Some((head, end + 4)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_where_the_body_ends() {
        let parse = |text: &str| Head::parse(text.as_bytes()).unwrap();
        let (head, end) = parse("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nbody").unwrap();
        assert_eq!((head.status, head.framing, head.closes, end), (200, Framing::Length(12), false, 39));
        let (head, _) =
            parse("HTTP/1.1 429 Too Many\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n").unwrap();
        assert_eq!((head.status, head.framing, head.closes), (429, Framing::Chunked, true));
        let (head, _) = parse("HTTP/1.1 200 OK\r\n\r\n").unwrap();
        assert_eq!((head.framing, head.closes), (Framing::Close, true));
        assert_eq!(parse("HTTP/1.1 200 OK\r\nContent-Le"), None);
    }

    #[test]
    fn what_is_no_head_is_an_error() {
        for text in ["\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nnothing\r\n\r\n"] {
            assert!(Head::parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
