//! Circuit breakers: a connection that keeps failing is left alone for a while.
//!
//! There is one breaker for each connection, in this process only: replicas find out on their own, and a restart starts
//! closed. A breaker opens on a run of failures or on a large share of failures among many calls, refuses for half a
//! minute, then lets a single call through. That call decides.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ConnectionId;
use tokio::time::Instant;

use crate::error::UpstreamError;

/// So many failures one after the other open a breaker.
const MAX_RUN: u32 = 5;
/// The time over which the share of failures is taken, in seconds.
const WINDOW_S: u64 = 30;
/// Fewer calls than this within the window say nothing about a share.
const MIN_CALLS: u32 = 20;
const OPEN_FOR: Duration = Duration::from_secs(30);
/// A closed breaker that nobody asked for so long is forgotten.
const IDLE: Duration = Duration::from_secs(10 * 60);
const MAX_BREAKERS: usize = 4096;

/// What a breaker does with the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Lets it through.
    Closed,
    /// Lets it through if no other one is out to try.
    HalfOpen,
    /// Refuses it.
    Open,
}

impl BreakerState {
    /// The value of the gauge `ragmux_upstream_breaker_state`.
    #[must_use]
    pub fn gauge(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }
}

/// The breakers of this process. Cheap to clone; all clones share them.
#[derive(Clone, Debug)]
pub struct Breakers {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    origin: Instant,
    swept: Instant,
    /// Grows with every turn of any breaker, so that a pass from before it is known.
    turns: u64,
    breakers: HashMap<ConnectionId, Breaker>,
}

#[derive(Debug)]
struct Breaker {
    position: Position,
    turn: u64,
    asked: Instant,
}

#[derive(Debug)]
enum Position {
    Closed { run: u32, seconds: Box<Seconds> },
    Open { until: Instant },
    Probing,
}

/// Calls by the second they ended in, over the last [`WINDOW_S`].
#[derive(Debug, Default)]
struct Seconds([Second; WINDOW_S as usize]);

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    number: u64,
    calls: u32,
    failures: u32,
}

/// What a call that was let through says about its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// The provider answered.
    Answered,
    /// It did not, or with a failure of its own.
    Failed,
    /// It answered that there are too many calls.
    Throttled,
    /// Nothing.
    None,
}

/// Which errors speak against a connection, all of them from before the first byte of an answer. A caller whose own time
/// ran out before the provider's is not asked (see [`crate::journey`]).
///
/// A provider that refuses a request works, so no 4xx is a failure. The one exception is 429, which counts only as part
/// of a storm: it is a failure for the share, and neither ends nor lengthens a run. So a provider that turns away half
/// of at least twenty calls in half a minute is left alone, and one that says "slower" five times is not.
fn sign(error: &UpstreamError) -> Sign {
    match error {
        UpstreamError::Connect(_)
        | UpstreamError::Lost(_)
        | UpstreamError::Timeout(_)
        | UpstreamError::Truncated
        | UpstreamError::Failed { .. } => Sign::Failed,
        UpstreamError::RateLimited { .. } => Sign::Throttled,
        UpstreamError::Auth { .. } | UpstreamError::Rejected { .. } | UpstreamError::TooLarge { .. } => Sign::Answered,
        // The address is configuration, and an answer that cannot be used may have been asked for so.
        UpstreamError::Refused(_)
        | UpstreamError::BadAnswer(_)
        | UpstreamError::Unfit(_)
        | UpstreamError::Image(_)
        | UpstreamError::Overloaded
        | UpstreamError::NoRoom
        | UpstreamError::LeftAlone { .. } => Sign::None,
    }
}

impl Default for Breakers {
    fn default() -> Self {
        Self::new()
    }
}

impl Breakers {
    /// No breaker yet; one begins closed when its connection is first asked for.
    #[must_use]
    pub fn new() -> Self {
        let now = Instant::now();
        let shared = Shared { origin: now, swept: now, turns: 0, breakers: HashMap::new() };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Asks to call a connection. None means that its breaker is open, or that another call is out to try it.
    #[must_use]
    pub fn admit(&self, connection: ConnectionId) -> Option<Pass> {
        let now = Instant::now();
        let mut shared = self.shared();
        shared.make_room(connection, now);
        let Shared { turns, breakers, .. } = &mut *shared;
        let breaker = breakers.entry(connection).or_insert_with(|| Breaker::closed(turns, now));
        breaker.asked = now;
        match breaker.position {
            Position::Closed { .. } => {}
            Position::Open { until } if until <= now => breaker.turn_to(Position::Probing, turns),
            Position::Open { .. } | Position::Probing => return None,
        }
        Some(Pass { breakers: self.clone(), connection, turn: breaker.turn, reported: false })
    }

    /// Where a connection's breaker stands. Asking changes nothing.
    #[must_use]
    pub fn state(&self, connection: ConnectionId) -> BreakerState {
        let now = Instant::now();
        self.shared().breakers.get(&connection).map_or(BreakerState::Closed, |breaker| breaker.state(now))
    }

    /// How long a connection's breaker still refuses every call, if it does.
    #[must_use]
    pub fn open_for(&self, connection: ConnectionId) -> Option<Duration> {
        let now = Instant::now();
        match self.shared().breakers.get(&connection)?.position {
            Position::Open { until } => until.checked_duration_since(now).filter(|left| !left.is_zero()),
            Position::Closed { .. } | Position::Probing => None,
        }
    }

    /// Every breaker there is, for the gauge, by connection.
    pub fn states(&self) -> impl Iterator<Item = (ConnectionId, BreakerState)> + use<> {
        let now = Instant::now();
        let mut states: Vec<_> =
            self.shared().breakers.iter().map(|(connection, breaker)| (*connection, breaker.state(now))).collect();
        states.sort_unstable_by_key(|(connection, _)| *connection);
        states.into_iter()
    }

    /// Forgets a connection that was changed or deleted: what is known of it does not hold for what it is now. Calls
    /// that are under way no longer count.
    pub fn forget(&self, connection: ConnectionId) {
        self.shared().breakers.remove(&connection);
    }

    /// Forgets all of them, likewise.
    pub fn forget_all(&self) {
        self.shared().breakers.clear();
    }

    fn report(&self, connection: ConnectionId, turn: u64, sign: Sign) {
        let now = Instant::now();
        let mut shared = self.shared();
        let Shared { origin, turns, breakers, .. } = &mut *shared;
        // What was let through before the breaker turned, or before it was forgotten, says nothing any more.
        let Some(breaker) = breakers.get_mut(&connection).filter(|breaker| breaker.turn == turn) else { return };
        let opens = match &mut breaker.position {
            Position::Closed { run, seconds } => {
                let second = now.saturating_duration_since(*origin).as_secs();
                match sign {
                    Sign::Answered => *run = 0,
                    Sign::Failed => *run += 1,
                    Sign::Throttled => {}
                    Sign::None => return,
                }
                seconds.count(second, sign != Sign::Answered);
                *run >= MAX_RUN || seconds.mostly_failed(second)
            }
            Position::Probing => match sign {
                Sign::Answered => {
                    tracing::info!(%connection, "a connection works again and is used again");
                    *breaker = Breaker::closed(turns, now);
                    false
                }
                Sign::Failed | Sign::Throttled => true,
                // The place of the one that tries is free again.
                Sign::None => {
                    breaker.turn_to(Position::Open { until: now }, turns);
                    false
                }
            },
            Position::Open { .. } => false,
        };
        if opens {
            tracing::warn!(%connection, seconds = OPEN_FOR.as_secs(), "a connection keeps failing and is left alone");
            breaker.turn_to(Position::Open { until: now + OPEN_FOR }, turns);
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Forgets closed breakers that idle, now and then; and one more, the longest idle and rather a closed one, if the
    /// next one would be too many.
    fn make_room(&mut self, next: ConnectionId, now: Instant) {
        if self.breakers.contains_key(&next) {
            return;
        }
        let full = self.breakers.len() >= MAX_BREAKERS;
        if full || now.saturating_duration_since(self.swept) >= IDLE {
            self.swept = now;
            self.breakers.retain(|_, breaker| {
                breaker.state(now) != BreakerState::Closed || now.saturating_duration_since(breaker.asked) < IDLE
            });
        }
        if self.breakers.len() >= MAX_BREAKERS
            && let Some((connection, _)) = self
                .breakers
                .iter()
                .min_by_key(|(_, breaker)| (breaker.state(now) != BreakerState::Closed, breaker.asked))
        {
            let connection = *connection;
            self.breakers.remove(&connection);
        }
    }
}

impl Breaker {
    fn closed(turns: &mut u64, now: Instant) -> Self {
        *turns += 1;
        Self { position: Position::Closed { run: 0, seconds: Box::default() }, turn: *turns, asked: now }
    }

    fn turn_to(&mut self, position: Position, turns: &mut u64) {
        *turns += 1;
        self.turn = *turns;
        self.position = position;
    }

    fn state(&self, now: Instant) -> BreakerState {
        match self.position {
            Position::Closed { .. } => BreakerState::Closed,
            Position::Open { until } if until > now => BreakerState::Open,
            Position::Open { .. } | Position::Probing => BreakerState::HalfOpen,
        }
    }
}

impl Seconds {
    fn count(&mut self, number: u64, failed: bool) {
        let Some(second) = self.0.get_mut((number % WINDOW_S) as usize) else { return };
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second.calls = second.calls.saturating_add(1);
        second.failures = second.failures.saturating_add(u32::from(failed));
    }

    fn mostly_failed(&self, now: u64) -> bool {
        let (calls, failures) = self
            .0
            .iter()
            .filter(|second| second.number + WINDOW_S > now)
            .fold((0_u32, 0_u32), |(calls, failures), second| {
                (calls.saturating_add(second.calls), failures.saturating_add(second.failures))
            });
        calls >= MIN_CALLS && failures >= calls.div_ceil(2)
    }
}

/// Leave to make one call, which is to be told how the call went. Dropped without a word, as when the call is
/// cancelled, it counts for nothing.
#[derive(Debug)]
#[must_use = "a pass that is dropped counts for nothing"]
pub struct Pass {
    breakers: Breakers,
    connection: ConnectionId,
    turn: u64,
    reported: bool,
}

impl Pass {
    /// The answer has begun. What happens to it later does not count.
    pub fn succeeded(mut self) {
        self.report(Sign::Answered);
    }

    /// The call ended before the first byte of an answer; the error decides whether that speaks against the connection.
    pub fn failed(mut self, error: &UpstreamError) {
        self.report(sign(error));
    }

    fn report(&mut self, sign: Sign) {
        self.reported = true;
        self.breakers.report(self.connection, self.turn, sign);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.reported {
            self.report(Sign::None);
        }
    }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
