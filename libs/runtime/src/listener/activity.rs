//! What a connection is doing, and until when it may go on doing it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Limits;
use super::progress::Progress;

/// How often a call is looked at in the time that its client has.
const LOOKS: u32 = 4;

/// The bytes that open an HTTP/2 connection (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What to do with a connection that has used up its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Close it: the client is not keeping up.
    Cut,
    /// Let it end in order: it is only idle.
    Leave,
    /// Look which of its calls are at a standstill.
    Look,
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
    /// The calls whose clients can keep them waiting one by one.
    calls: Vec<Watched>,
    look_at: Instant,
}

/// A call, and since when it is where it is.
struct Watched {
    progress: Arc<Progress>,
    step: u64,
    since: Instant,
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
            calls: Vec::new(),
            look_at: Instant::now(),
        };
        Self {
            limits,
            state: Mutex::new(state),
            changed: Notify::new(),
            first_call: CancellationToken::new(),
            http2: CancellationToken::new(),
        }
    }

    /// Until when the connection may go on like this, and what happens then. `None` while it may.
    pub(super) fn deadline(&self) -> Option<(Instant, Verdict)> {
        let state = self.state();
        if let Some(since) = state.write_blocked_since {
            return Some((since + self.limits.write_stall, Verdict::Cut));
        }
        if state.in_flight > 0 {
            return (!state.calls.is_empty()).then_some((state.look_at, Verdict::Look));
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

    pub(super) fn call_begins(&self, progress: Option<&Arc<Progress>>) {
        let mut state = self.state();
        if let Some(progress) = progress {
            let now = Instant::now();
            if state.calls.is_empty() {
                state.look_at = now + self.limits.write_stall / LOOKS;
            }
            state.calls.push(Watched { progress: Arc::clone(progress), step: progress.step(), since: now });
        }
        state.in_flight += 1;
        state.served = true;
        state.head_since = None;
        self.first_call.cancel();
        self.changed.notify_one();
    }

    pub(super) fn call_ends(&self, progress: Option<&Arc<Progress>>) {
        let mut state = self.state();
        if let Some(progress) = progress
            && let Some(at) = state.calls.iter().position(|call| Arc::ptr_eq(&call.progress, progress))
        {
            state.calls.swap_remove(at);
        }
        state.in_flight = state.in_flight.saturating_sub(1);
        state.quiet_since = Instant::now();
        self.changed.notify_one();
    }

    /// Gives up the calls whose clients have taken nothing for too long. Returns how many there were.
    pub(super) fn look(&self) -> usize {
        let now = Instant::now();
        let mut state = self.state();
        state.look_at = now + self.limits.write_stall / LOOKS;
        let mut given_up = 0;
        for call in &mut state.calls {
            let step = call.progress.step();
            if step != call.step || !Progress::waits_for_client(step) {
                (call.step, call.since) = (step, now);
            } else if now.duration_since(call.since) >= self.limits.write_stall {
                call.progress.give_up();
                given_up += 1;
            }
        }
        given_up
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

        activity.call_begins(None);
        assert_eq!(activity.deadline(), None);
        activity.write_blocked(true);
        assert_eq!(wait(&activity), (limits.write_stall, Verdict::Cut));
        activity.write_blocked(false);
        activity.call_ends(None);
        assert_eq!(wait(&activity), (limits.keep_alive, Verdict::Leave));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_call_that_waits_for_its_client_all_the_time_is_given_up() {
        let activity = Activity::new(Limits::default());
        let calls = [(); 4].map(|()| Arc::new(Progress::default()));
        let [working, thinking, moving, stalled] = &calls;
        calls.iter().for_each(|call| activity.call_begins(Some(call)));
        // One is still in its handler, one has an answer that is not ready.
        [thinking, moving, stalled].iter().for_each(|call| call.is_turn_of(true));
        thinking.is_turn_of(false);
        let mut given_up = Vec::new();
        for _ in 0..2 * LOOKS {
            let (wait, verdict) = wait(&activity);
            assert_eq!(verdict, Verdict::Look);
            tokio::time::advance(wait).await;
            given_up.push(activity.look());
            moving.is_turn_of(true);
        }
        assert_eq!(given_up.iter().take(LOOKS as usize).sum::<usize>(), 0, "{given_up:?}");
        assert_eq!(given_up.iter().max(), Some(&1));
        for call in [working, thinking, moving] {
            activity.call_ends(Some(call));
        }
        assert_eq!(activity.look(), 1);
        activity.call_ends(Some(stalled));
        assert_eq!(activity.look(), 0);
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
