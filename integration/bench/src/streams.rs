//! Paced streams as a client sees them.

use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use futures::future::join_all;
use memchr::memchr;
use upstream::STAMP;

use crate::course::DIRECT;
use crate::http::Connection;
use crate::traffic::{Leg, transcript};

/// Digits of an event's number, which stands before its stamp behind a `#`.
const NUMBER: usize = 6;

/// One stream from its request to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Played {
    /// Seconds from sending the request to the first bytes of the body.
    pub(crate) first: f64,
    /// Event by event: how many seconds after the upstream had handed it over it was here.
    pub(crate) delays: Vec<f64>,
    /// Whether numbers were left out, came twice or in another order.
    pub(crate) is_disordered: bool,
    /// Whether the bytes were not those expected; never where none are.
    pub(crate) is_different: bool,
}

impl Played {
    /// By how many seconds the time between two events was longer here than at the upstream.
    pub(crate) fn added_gaps(&self) -> impl Iterator<Item = f64> {
        self.delays.iter().zip(self.delays.iter().skip(1)).map(|(before, after)| after - before)
    }
}

/// Clients of paced streams on one leg.
#[derive(Debug)]
pub(crate) struct Listeners {
    name: &'static str,
    request: Vec<u8>,
    events: usize,
    expected: Option<String>,
    connections: Vec<Connection>,
}

impl Listeners {
    /// So many clients, for streams of so many events.
    pub(crate) fn new(leg: &Leg, count: usize, events: usize, keeps_bytes: bool) -> Self {
        let target = leg.stream();
        let is_known = keeps_bytes || leg.name == DIRECT;
        Self {
            name: leg.name,
            request: target.request,
            events,
            expected: is_known.then(|| transcript(&leg.model, events)),
            connections: (0..count).map(|_| Connection::new(leg.address)).collect(),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Every client reads one stream after the other until so long has gone by, at least one. They begin at random times
    /// within `spread`, so that their events do not come all at once.
    pub(crate) async fn window(&mut self, length: Duration, spread: Duration) -> (Vec<Played>, Vec<String>) {
        let (request, expected) = (self.request.as_slice(), self.expected.as_ref().map(String::as_bytes));
        let (all, failures) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let begun = Instant::now();
        join_all(self.connections.iter_mut().map(async |connection| {
            tokio::time::sleep(spread.mul_f64(rand::random())).await;
            loop {
                match play(connection, request, self.events, expected).await {
                    Ok(played) => all.borrow_mut().push(played),
                    Err(error) => failures.borrow_mut().push(format!("{error:#}")),
                }
                if begun.elapsed() >= length {
                    return;
                }
            }
        }))
        .await;
        (all.into_inner(), failures.into_inner())
    }
}

/// Calls, and reads a stream of so many events.
///
/// # Errors
/// When it is not answered by a stream, or cut.
async fn play(
    connection: &mut Connection,
    request: &[u8],
    events: usize,
    expected: Option<&[u8]>,
) -> anyhow::Result<Played> {
    let mut reader = Reader::new(expected);
    let begun = Instant::now();
    let mut first = None;
    let head = connection
        .call(request, |piece| {
            first.get_or_insert_with(|| begun.elapsed().as_secs_f64());
            reader.read(piece, now());
        })
        .await?;
    if head.status != 200 {
        bail!("status {}: {}", head.status, String::from_utf8_lossy(&reader.rest));
    }
    let is_different = !reader.is_as_expected();
    let is_disordered = reader.is_disordered || reader.next != events + 1;
    Ok(Played { first: first.unwrap_or_default(), delays: reader.delays, is_disordered, is_different })
}

/// Nanoseconds since 1970: the clock that the upstream's stamps are of, on the same machine.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// Finds stamps in pieces of a stream and compares its bytes.
struct Reader<'a> {
    expected: Option<&'a [u8]>,
    /// How many bytes have come.
    length: usize,
    differs: bool,
    /// What may be the beginning of a stamp with its number.
    rest: Vec<u8>,
    next: usize,
    is_disordered: bool,
    delays: Vec<f64>,
}

impl<'a> Reader<'a> {
    fn new(expected: Option<&'a [u8]>) -> Self {
        Self {
            expected,
            length: 0,
            differs: false,
            rest: Vec::new(),
            next: 1,
            is_disordered: false,
            delays: Vec::new(),
        }
    }

    fn read(&mut self, piece: &[u8], now: i64) {
        if let Some(expected) = self.expected {
            let there = expected.get(self.length..self.length + piece.len());
            self.differs |= !there.is_some_and(|there| is_same(there, piece));
        }
        self.length += piece.len();
        self.rest.extend_from_slice(piece);
        self.stamps(now);
    }

    fn stamps(&mut self, now: i64) {
        let mut done = 0;
        while let Some(at) = self.rest.get(done..).and_then(|rest| memchr(b'@', rest)).map(|at| done + at) {
            let Some(digits) = self.rest.get(at + 1..at + STAMP.len()) else { break };
            let Some(stamp) = number(digits) else {
                done = at + 1;
                continue;
            };
            let event = at.checked_sub(NUMBER).and_then(|start| self.rest.get(start..at)).and_then(number);
            self.is_disordered |= event != i64::try_from(self.next).ok();
            self.next += 1;
            self.delays.push(now.saturating_sub(stamp) as f64 / 1e9);
            done = at + STAMP.len();
        }
        // A stamp and its number that are not complete yet stay; what is before them goes.
        let kept = memchr(b'@', self.rest.get(done..).unwrap_or_default()).map_or(self.rest.len(), |at| done + at);
        self.rest.drain(..kept.saturating_sub(NUMBER).max(done));
    }

    fn is_as_expected(&self) -> bool {
        !self.differs && self.expected.is_none_or(|expected| expected.len() == self.length)
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether bytes are equal, any digit standing for one of a stamp, which are all zero in what is expected.
fn is_same(expected: &[u8], found: &[u8]) -> bool {
    expected == found
        || expected
            .iter()
            .zip(found)
            .all(|(expected, found)| expected == found || *expected == b'0' && found.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::transcript;

    fn stamped(events: usize) -> String {
        transcript("m", events).replace(STAMP, "@0000000001000000000")
    }

    fn read(text: &str, expected: &str, size: usize) -> (Vec<f64>, bool, bool) {
        let mut reader = Reader::new(Some(expected.as_bytes()));
        for piece in text.as_bytes().chunks(size) {
            reader.read(piece, 1_500_000_000);
        }
        (reader.delays.clone(), reader.is_disordered, reader.is_as_expected())
    }

    #[test]
    fn stamps_are_found_however_the_bytes_come() {
        let (text, expected) = (stamped(3), transcript("m", 3));
        for size in 1..400 {
            assert_eq!(read(&text, &expected, size), (vec![0.5; 3], false, true), "{size}");
        }
    }

    #[test]
    fn what_is_left_out_changed_or_exchanged_is_noticed() {
        let (text, expected) = (stamped(3), transcript("m", 3));
        assert!(!read(&text.replace("stop", "stoq"), &expected, 50).2);
        assert!(!read(text.trim_end(), &expected, 50).2);
        assert!(!read(&format!("{text}\n"), &expected, 50).2);
        assert!(read(&text.replace("#000002", "#000003"), &expected, 50).1);
        let exchanged = text.replace("#000001", "x").replace("#000002", "#000001").replace('x', "#000002");
        assert!(read(&exchanged, &expected, 50).1);
    }

    #[test]
    fn an_added_gap_is_the_growth_of_the_delay() {
        let played = Played { delays: vec![1.0, 1.5, 1.25], ..Played::default() };
        assert_eq!(played.added_gaps().collect::<Vec<_>>(), [0.5, -0.25]);
    }
}
