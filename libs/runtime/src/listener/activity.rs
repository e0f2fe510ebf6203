//! What a connection is doing, and until when it may go on doing it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Limits;

/// The bytes that open an HTTP/2 connection (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What to do with a connection that has used up its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Close it: the client is not keeping up.
    Cut,
    /// Let it end in order: it is only idle.
    Leave,
}

/// The state of one connection, told by its stream and its calls, read by its task.
pub(super) struct Activity {
    limits: Limits,
    state: Mutex<State>,
    changed: Notify,
    first_call: CancellationToken,
    http2: CancellationToken,
}

struct State {
    in_flight: usize,
    served: bool,
    quiet_since: Instant,
    head_since: Option<Instant>,
    write_blocked_since: Option<Instant>,
    protocol: Protocol,
}

/// Which protocol the client speaks, as far as its first bytes have told.
#[derive(Clone, Copy)]
enum Protocol {
    Unknown { preface_seen: usize },
    Http1,
    Http2,
}

impl Activity {
    pub(super) fn new(limits: Limits) -> Self {
        let state = State {
            in_flight: 0,
            served: false,
            quiet_since: Instant::now(),
            head_since: None,
            write_blocked_since: None,
            protocol: Protocol::Unknown { preface_seen: 0 },
        };
        Self {
            limits,
            state: Mutex::new(state),
            changed: Notify::new(),
            first_call: CancellationToken::new(),
            http2: CancellationToken::new(),
        }
    }

    /// Until when the connection may go on like this, and what happens then. `None` while a call is being worked on.
    pub(super) fn deadline(&self) -> Option<(Instant, Verdict)> {
        let state = self.state();
        if let Some(since) = state.write_blocked_since {
            return Some((since + self.limits.write_stall, Verdict::Cut));
        }
        if state.in_flight > 0 {
            return None;
        }
        Some(match (state.protocol, state.head_since) {
            (Protocol::Http2, _) => (state.quiet_since + self.limits.http2_idle, Verdict::Leave),
            (_, Some(since)) => (since + self.limits.header, Verdict::Cut),
            (_, None) if state.served => (state.quiet_since + self.limits.keep_alive, Verdict::Leave),
            (_, None) => (state.quiet_since + self.limits.header, Verdict::Cut),
        })
    }

    /// Waits for a change that may have moved the deadline.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until the first call has begun.
    pub(super) async fn first_call(&self) {
        self.first_call.cancelled().await;
    }

    /// Waits until the client has turned out to speak HTTP/2.
    pub(super) async fn speaks_http2(&self) {
        self.http2.cancelled().await;
    }

    pub(super) fn bytes_read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if let Protocol::Unknown { preface_seen } = state.protocol {
            let expected = HTTP2_PREFACE.get(preface_seen..).unwrap_or_default();
            let length = expected.len().min(bytes.len());
            state.protocol = match (expected.get(..length) == bytes.get(..length), length == expected.len()) {
                (false, _) => Protocol::Http1,
                (true, true) => Protocol::Http2,
                (true, false) => Protocol::Unknown { preface_seen: preface_seen + length },
            };
            if matches!(state.protocol, Protocol::Http2) {
                self.http2.cancel();
            }
        }
        if state.in_flight == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
            self.changed.notify_one();
        }
    }

    pub(super) fn write_blocked(&self, blocked: bool) {
        let mut state = self.state();
        if blocked != state.write_blocked_since.is_some() {
            state.write_blocked_since = blocked.then(Instant::now);
            self.changed.notify_one();
        }
    }

    pub(super) fn call_begins(&self) {
        let mut state = self.state();
        state.in_flight += 1;
        state.served = true;
        state.head_since = None;
        self.first_call.cancel();
        self.changed.notify_one();
    }

    pub(super) fn call_ends(&self) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.quiet_since = Instant::now();
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn wait(activity: &Activity) -> (Duration, Verdict) {
        let (at, verdict) = activity.deadline().unwrap();
        (at - Instant::now(), verdict)
    }

    #[tokio::test(start_paused = true)]
    async fn each_thing_a_connection_does_has_its_own_limit() {
        let limits = Limits::default();
        let activity = Activity::new(limits);
        assert_eq!(wait(&activity), (limits.header, Verdict::Cut), "nothing was sent yet");

        tokio::time::advance(Duration::from_secs(5)).await;
        activity.bytes_read(b"GET / HT");
        assert_eq!(wait(&activity), (limits.header, Verdict::Cut));
        tokio::time::advance(Duration::from_secs(5)).await;
        activity.bytes_read(b"TP/1.1\r\n");
        let left = limits.header - Duration::from_secs(5);
        assert_eq!(wait(&activity), (left, Verdict::Cut), "more of the header buys no time");

        activity.call_begins();
        assert_eq!(activity.deadline(), None);
        activity.write_blocked(true);
        assert_eq!(wait(&activity), (limits.write_stall, Verdict::Cut));
        activity.write_blocked(false);
        activity.call_ends();
        assert_eq!(wait(&activity), (limits.keep_alive, Verdict::Leave));
    }

    #[tokio::test(start_paused = true)]
    async fn http2_is_told_by_its_preface_in_any_number_of_pieces() {
        let limits = Limits::default();
        for size in [1, 7, 24] {
            let activity = Activity::new(limits);
            HTTP2_PREFACE.chunks(size).for_each(|piece| activity.bytes_read(piece));
            activity.speaks_http2().await;
            assert_eq!(wait(&activity), (limits.http2_idle, Verdict::Leave));
        }
        let activity = Activity::new(limits);
        activity.bytes_read(b"PRI * HTTP/1.1\r\n\r\n");
        assert_eq!(wait(&activity), (limits.header, Verdict::Cut));
    }
}
