//! How an answer goes out: pieces, pauses, and where it breaks.

use std::{collections::VecDeque, io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use memchr::memmem;
use tokio_util::sync::CancellationToken;

use crate::{
    answer::{Answer, unix_nanos},
    script::{Behaviour, LineEnd, Outcome, STAMP, Seen},
};

/// One thing to do with the body of an answer.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Send(Bytes),
    Pause(Duration),
    /// Lets the connection write what it has.
    Flush,
    Hold,
    /// Breaks the connection.
    Cut,
    /// Waits for the client to leave.
    Stay,
}

/// The steps of one answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    steps: VecDeque<Step>,
    stamp: bool,
}

impl Plan {
    pub(crate) fn new(answer: Answer, behaviour: &Behaviour) -> Self {
        let pieces = match answer {
            Answer::Whole { body, .. } => vec![body],
            Answer::Lines(lines) => lines,
            Answer::Events(events) => {
                events.into_iter().map(|event| with_line_end(event, behaviour.line_end)).collect()
            }
        };
        let mut steps = VecDeque::new();
        for (n, piece) in pieces.into_iter().enumerate() {
            if behaviour.cut_after_events == Some(n) {
                steps.push_back(Step::Cut);
                break;
            }
            if behaviour.hold_each_event || behaviour.hold_after_events == Some(n) {
                steps.push_back(Step::Hold);
            }
            if n > 0 && behaviour.between_events_ms > 0 {
                steps.push_back(Step::Pause(Duration::from_millis(behaviour.between_events_ms)));
            }
            if !piece.is_empty() {
                steps.push_back(Step::Send(piece.into()));
            }
        }
        if let Some(limit) = behaviour.cut_after_bytes {
            steps = cut(steps, limit);
        }
        if let Some(place) = behaviour.hold_after_bytes {
            steps = held(steps, place);
        }
        if let Some(size) = behaviour.split_bytes {
            steps = split(steps, size.max(1));
        }
        if behaviour.stay_open {
            steps.push_back(Step::Stay);
        }
        Self { steps, stamp: behaviour.stamp }
    }

    /// The body, which tells `seen` what happens to it and ends when `stop` does.
    pub(crate) fn into_body(
        self,
        seen: Seen,
        stop: CancellationToken,
    ) -> impl Stream<Item = Result<Bytes, io::Error>> + Send + 'static {
        let stamp = self.stamp;
        stream::unfold((self.steps, seen, stop), move |(mut steps, mut seen, stop)| async move {
            loop {
                let step = steps.pop_front()?;
                let waited = match step {
                    Step::Send(bytes) => {
                        let bytes = if stamp { stamped(bytes) } else { bytes };
                        seen.sent(bytes.len());
                        if steps.is_empty() {
                            // A connection that knows the length does not come back for the end.
                            seen.ends(Outcome::Answered);
                        }
                        return Some((Ok(bytes), (steps, seen, stop)));
                    }
                    Step::Cut => {
                        tokio::task::yield_now().await;
                        seen.ends(Outcome::Cut);
                        return Some((Err(broken()), (VecDeque::new(), seen, stop)));
                    }
                    Step::Flush => stop.run_until_cancelled(tokio::task::yield_now()).await,
                    Step::Pause(time) => stop.run_until_cancelled(tokio::time::sleep(time)).await,
                    Step::Hold => stop.run_until_cancelled(seen.hold()).await,
                    Step::Stay => stop.run_until_cancelled(std::future::pending()).await,
                };
                if waited.is_none() {
                    seen.ends(Outcome::Cut);
                    return Some((Err(broken()), (VecDeque::new(), seen, stop)));
                }
                if steps.is_empty() {
                    seen.ends(Outcome::Answered);
                }
            }
        })
    }
}

/// The piece with the time of now in its stamps.
fn stamped(piece: Bytes) -> Bytes {
    let mut places = memmem::find_iter(&piece, STAMP).peekable();
    if places.peek().is_none() {
        return piece;
    }
    let now = format!("@{:019}", unix_nanos());
    let mut text = Vec::with_capacity(piece.len());
    let mut end = 0;
    for place in places {
        text.extend_from_slice(piece.get(end..place).unwrap_or_default());
        text.extend_from_slice(now.as_bytes());
        end = place + STAMP.len();
    }
    text.extend_from_slice(piece.get(end..).unwrap_or_default());
    text.into()
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "cut")
}

fn with_line_end(event: Vec<u8>, line_end: LineEnd) -> Vec<u8> {
    let end: &[u8] = match line_end {
        LineEnd::Lf => return event,
        LineEnd::CrLf => b"\r\n",
        LineEnd::Cr => b"\r",
    };
    let mut converted = Vec::with_capacity(event.len() + 4);
    for byte in event {
        if byte == b'\n' {
            converted.extend_from_slice(end);
        } else {
            converted.push(byte);
        }
    }
    converted
}

/// The steps up to this many bytes, then a cut. A body that is shorter is cut at its end.
fn cut(steps: VecDeque<Step>, limit: usize) -> VecDeque<Step> {
    let mut left = limit;
    let mut kept = VecDeque::new();
    for step in steps {
        match step {
            Step::Send(bytes) if bytes.len() >= left => {
                if left > 0 {
                    kept.push_back(Step::Send(bytes.slice(..left)));
                }
                break;
            }
            Step::Send(ref bytes) => {
                left -= bytes.len();
                kept.push_back(step);
            }
            Step::Cut => break,
            other => kept.push_back(other),
        }
    }
    kept.push_back(Step::Cut);
    kept
}

/// The same bytes with a hold after so many of them.
fn held(steps: VecDeque<Step>, place: usize) -> VecDeque<Step> {
    let mut left = Some(place);
    let mut with = VecDeque::new();
    for step in steps {
        match (step, left) {
            (Step::Send(bytes), Some(before)) if bytes.len() > before => {
                if before > 0 {
                    with.push_back(Step::Send(bytes.slice(..before)));
                }
                with.push_back(Step::Hold);
                with.push_back(Step::Send(bytes.slice(before..)));
                left = None;
            }
            (Step::Send(bytes), Some(before)) => {
                left = Some(before - bytes.len());
                with.push_back(Step::Send(bytes));
            }
            (step, _) => with.push_back(step),
        }
    }
    with
}

/// The same bytes in pieces of `size`, each flushed, across the borders of events.
fn split(steps: VecDeque<Step>, size: usize) -> VecDeque<Step> {
    let mut pieces = VecDeque::new();
    let mut joined = BytesMut::new();
    for step in steps {
        if let Step::Send(bytes) = step {
            joined.extend_from_slice(&bytes);
        } else {
            split_bytes(&mut joined, size, &mut pieces);
            pieces.push_back(step);
        }
    }
    split_bytes(&mut joined, size, &mut pieces);
    pieces
}

fn split_bytes(joined: &mut BytesMut, size: usize, pieces: &mut VecDeque<Step>) {
    while !joined.is_empty() {
        if matches!(pieces.back(), Some(Step::Send(_))) {
            pieces.push_back(Step::Flush);
        }
        pieces.push_back(Step::Send(joined.split_to(size.min(joined.len())).freeze()));
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use hyper::StatusCode;

    use super::*;

    fn events() -> Answer {
        Answer::Events(["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"].map(|event| event.as_bytes().to_vec()).to_vec())
    }

    /// What is sent, and whether the body breaks.
    async fn play(answer: Answer, behaviour: Behaviour) -> (Vec<String>, bool) {
        let body = Plan::new(answer, &behaviour).into_body(Seen::unseen(), CancellationToken::new());
        let pieces: Vec<_> = body.collect().await;
        let broken = pieces.iter().any(Result::is_err);
        let sent = pieces.into_iter().flatten().map(|piece| String::from_utf8_lossy(&piece).into_owned());
        (sent.collect(), broken)
    }

    #[tokio::test]
    async fn an_answer_goes_out_event_by_event() {
        let (sent, broken) = play(events(), Behaviour::default()).await;
        assert_eq!(sent, ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"]);
        assert!(!broken);
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_paced_with_pauses_between_them() {
        let start = tokio::time::Instant::now();
        play(events(), Behaviour { between_events_ms: 250, ..Behaviour::default() }).await;
        // The clock of this test only moves when everything waits for it.
        assert_eq!(start.elapsed(), Duration::from_millis(500));
    }

    #[tokio::test]
    async fn pieces_go_across_events_and_characters() {
        let answer = Answer::Events(vec!["data: é\n\n".as_bytes().to_vec(), b"data: 2\n\n".to_vec()]);
        let behaviour = Behaviour { split_bytes: Some(7), ..Behaviour::default() };
        let body = Plan::new(answer, &behaviour).into_body(Seen::unseen(), CancellationToken::new());
        let pieces: Vec<Vec<u8>> = body.map(|piece| piece.unwrap().to_vec()).collect().await;
        assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [7, 7, 5]);
        assert_eq!(pieces.concat(), "data: é\n\ndata: 2\n\n".as_bytes());
    }

    #[tokio::test]
    async fn a_cut_comes_after_exactly_so_many_bytes_or_events() {
        for (behaviour, expected) in [
            (Behaviour { cut_after_bytes: Some(0), ..Behaviour::default() }, ""),
            (Behaviour { cut_after_bytes: Some(12), ..Behaviour::default() }, "data: 1\n\ndat"),
            (Behaviour { cut_after_bytes: Some(9), split_bytes: Some(2), ..Behaviour::default() }, "data: 1\n\n"),
            (Behaviour { cut_after_bytes: Some(99), ..Behaviour::default() }, "data: 1\n\ndata: 2\n\ndata: 3\n\n"),
            (Behaviour { cut_after_events: Some(0), ..Behaviour::default() }, ""),
            (Behaviour { cut_after_events: Some(2), ..Behaviour::default() }, "data: 1\n\ndata: 2\n\n"),
        ] {
            let (sent, broken) = play(events(), behaviour.clone()).await;
            assert_eq!((sent.concat().as_str(), broken), (expected, true), "{behaviour:?}");
        }
    }

    #[tokio::test]
    async fn stamps_tell_when_a_piece_was_sent() {
        let answer = Answer::Events(vec![format!("data: {STAMP} {STAMP}\n\n").into_bytes(), b"data: @\n\n".to_vec()]);
        let before = unix_nanos();
        let (sent, _) = play(answer, Behaviour { stamp: true, ..Behaviour::default() }).await;
        let stamps: Vec<u64> =
            sent[0].trim().trim_start_matches("data: ").split(' ').map(|stamp| stamp[1..].parse().unwrap()).collect();
        assert_eq!((stamps.len(), stamps[0], sent[0].len()), (2, stamps[1], 2 * STAMP.len() + 9));
        assert!((before..=unix_nanos()).contains(&stamps[0]));
        assert_eq!(sent[1], "data: @\n\n");
    }

    #[tokio::test]
    async fn a_hold_comes_before_each_event_or_after_exactly_so_many_bytes() {
        for (behaviour, expected) in [
            (
                Behaviour { hold_each_event: true, ..Behaviour::default() },
                ["", "data: 1\n\n", "data: 2\n\n", "data: 3\n\n"].as_slice(),
            ),
            (
                Behaviour { hold_after_bytes: Some(12), ..Behaviour::default() },
                &["data: 1\n\ndat", "a: 2\n\ndata: 3\n\n"],
            ),
            (
                Behaviour { hold_after_bytes: Some(9), ..Behaviour::default() },
                &["data: 1\n\n", "data: 2\n\ndata: 3\n\n"],
            ),
            (Behaviour { hold_after_bytes: Some(27), ..Behaviour::default() }, &["data: 1\n\ndata: 2\n\ndata: 3\n\n"]),
        ] {
            let mut between = vec![String::new()];
            for step in Plan::new(events(), &behaviour).steps {
                match (step, between.last_mut()) {
                    (Step::Send(bytes), Some(last)) => last.push_str(&String::from_utf8_lossy(&bytes)),
                    (Step::Hold, _) => between.push(String::new()),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(between, expected, "{behaviour:?}");
        }
    }

    #[tokio::test]
    async fn lines_end_as_asked() {
        for (line_end, expected) in [(LineEnd::CrLf, "data: 1\r\n\r\n"), (LineEnd::Cr, "data: 1\r\r")] {
            let (sent, _) = play(events(), Behaviour { line_end, ..Behaviour::default() }).await;
            assert_eq!(sent[0], expected);
        }
    }

    #[tokio::test]
    async fn a_stop_breaks_a_body_that_stays_open() {
        let behaviour = Behaviour { stay_open: true, ..Behaviour::default() };
        let stop = CancellationToken::new();
        let answer = Answer::whole(StatusCode::OK, b"{}".to_vec());
        let mut body = Box::pin(Plan::new(answer, &behaviour).into_body(Seen::unseen(), stop.clone()));
        assert_eq!(body.next().await.unwrap().unwrap(), "{}");
        assert!(futures::poll!(body.next()).is_pending());
        stop.cancel();
        assert!(body.next().await.unwrap().is_err());
    }
}
