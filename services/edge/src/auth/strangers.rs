//! Clients that send keys which do not exist.
//!
//! A well-formed key that does not exist costs a question to the database, and only that question tells it from one that
//! does. So every client address may ask for a few of them, and some more as time goes by. A client that has asked for
//! too many is told so, and its questions about keys that are not known here yet take turns with those of others like
//! it: whatever it sends, the database is left to the rest. Keys that are known here are answered without any of this.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// How many keys that do not exist an address may ask for at once.
const BURST: u32 = 30;

/// After how long it may ask for one more.
const EVERY: Duration = Duration::from_secs(2);

/// Addresses that are told apart. Those that come when there are so many are counted together.
const ADDRESSES: usize = 8192;

/// When addresses that have rested long enough are looked for, at most.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// How often the log is told.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Questions of throttled clients at a time, and how many of them may wait for their turn.
const TURNS: usize = 2;
const WAITING: usize = 64;

/// What was asked for in vain, by client address.
pub(crate) struct Strangers {
    capacity: usize,
    seen: Mutex<Seen>,
    waiting: Semaphore,
    turns: Semaphore,
}

/// The turn of a throttled client, until it is dropped; none where none is needed.
pub(super) struct Turn<'a> {
    _permits: Option<(SemaphorePermit<'a>, SemaphorePermit<'a>)>,
}

/// Of each address the moment from which on nothing is held against it. Every key that does not exist moves it by
/// [`EVERY`], and it is never further away than [`BURST`] times that.
#[derive(Default)]
struct Seen {
    addresses: HashMap<IpAddr, Instant>,
    others: Option<Instant>,
    swept: Option<Instant>,
    told: Option<Instant>,
}

impl Strangers {
    pub(crate) fn new() -> Self {
        Self::with(ADDRESSES)
    }

    fn with(capacity: usize) -> Self {
        let (waiting, turns) = (Semaphore::new(WAITING), Semaphore::new(TURNS));
        Self { capacity, seen: Mutex::default(), waiting, turns }
    }

    /// Waits for a turn to ask the database, where the address needs one. Fails, with when to come back, when there are
    /// too many before it.
    pub(super) async fn turn(&self, client: IpAddr, patience: Duration) -> Result<Turn<'_>, Duration> {
        if !self.is_throttled(client, Instant::now()) {
            return Ok(Turn { _permits: None });
        }
        let place = self.waiting.try_acquire().map_err(|_| EVERY)?;
        let turn = timeout(patience, self.turns.acquire()).await;
        // Acquiring itself fails only when the semaphore is closed, which nobody does.
        let turn = turn.map_err(|_| EVERY)?.map_err(|_| EVERY)?;
        Ok(Turn { _permits: Some((place, turn)) })
    }

    fn is_throttled(&self, client: IpAddr, now: Instant) -> bool {
        let seen = self.seen();
        let from = seen.addresses.get(&network(client)).copied().or(seen.others);
        from.is_some_and(|from| excess(from, now).is_some())
    }

    /// Notes a key that did not exist. Fails, with when to come back, when there were too many of them before.
    pub(super) fn missed(&self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut seen = self.seen();
        let network = network(client);
        if seen.addresses.len() >= self.capacity && !seen.addresses.contains_key(&network) {
            seen.sweep(now);
        }
        let has_room = seen.addresses.len() < self.capacity || seen.addresses.contains_key(&network);
        let from = if has_room { seen.addresses.entry(network).or_insert(now) } else { seen.others.get_or_insert(now) };
        let Some(wait) = excess(*from, now) else {
            *from = (*from).max(now) + EVERY;
            return Ok(());
        };
        if seen.told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY) {
            seen.told = Some(now);
            tracing::warn!(%network, "clients that send API keys which do not exist are throttled");
        }
        Err(wait)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP_EVERY) {
            return;
        }
        self.swept = Some(now);
        self.addresses.retain(|_, from| *from > now);
    }
}

/// How long until one more may be asked for, if not now.
fn excess(from: Instant, now: Instant) -> Option<Duration> {
    let held = from.saturating_duration_since(now) + EVERY;
    held.checked_sub(BURST * EVERY).filter(|excess| !excess.is_zero())
}

/// What is counted as one client: an IPv4 address, or the /64 of IPv6 that one host picks its addresses from (RFC 4291,
/// 2.5.4).
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn exhaust(strangers: &Strangers, client: IpAddr, now: Instant) -> Duration {
        for _ in 0..BURST {
            assert!(!strangers.is_throttled(client, now));
            assert_eq!(strangers.missed(client, now), Ok(()));
        }
        assert!(strangers.is_throttled(client, now));
        strangers.missed(client, now).unwrap_err()
    }

    #[test]
    fn an_address_has_a_few_tries_and_one_more_from_time_to_time() {
        let (strangers, now) = (Strangers::new(), Instant::now());
        let client = ip("192.0.2.1");
        assert_eq!(exhaust(&strangers, client, now), EVERY);
        assert!(!strangers.is_throttled(ip("192.0.2.2"), now));
        let later = now + EVERY / 2;
        assert_eq!(strangers.missed(client, later), Err(EVERY / 2), "being told does not make it longer");
        let later = now + EVERY;
        assert_eq!(strangers.missed(client, later), Ok(()));
        assert_eq!(strangers.missed(client, later), Err(EVERY));
        exhaust(&strangers, client, later + BURST * EVERY);
    }

    #[test]
    fn all_addresses_of_one_host_are_one_client() {
        let (strangers, now) = (Strangers::new(), Instant::now());
        for last in 0..BURST {
            assert_eq!(strangers.missed(ip(&format!("2001:db8:1:2:{last:x}::1")), now), Ok(()));
        }
        assert_eq!(strangers.missed(ip("2001:db8:1:2:ffff::"), now), Err(EVERY));
        assert_eq!(strangers.missed(ip("2001:db8:1:3::1"), now), Ok(()));
        exhaust(&strangers, ip("::ffff:192.0.2.1"), now);
        assert_eq!(strangers.missed(ip("192.0.2.1"), now), Err(EVERY));
    }

    #[test]
    fn addresses_without_number_take_bounded_memory_and_share_what_is_left() {
        let (strangers, now) = (Strangers::with(4), Instant::now());
        for host in 1..=4_u8 {
            assert_eq!(strangers.missed(IpAddr::from([192, 0, 2, host]), now), Ok(()));
        }
        let mut refused = 0;
        for host in 5..=250_u8 {
            refused += u32::from(strangers.missed(IpAddr::from([192, 0, 2, host]), now).is_err());
        }
        assert_eq!(refused, 246 - BURST);
        assert_eq!(strangers.seen().addresses.len(), 4);
        assert_eq!(strangers.missed(ip("192.0.2.1"), now), Ok(()), "who was there before has its own");
        let later = now + 2 * EVERY;
        assert_eq!(strangers.missed(ip("198.51.100.1"), later), Ok(()), "those that have rested make room");
        assert_eq!(strangers.seen().addresses.len(), 1);
    }

    #[tokio::test]
    async fn throttled_clients_take_turns_and_nobody_else_waits() {
        let (strangers, client, other) = (Strangers::new(), ip("192.0.2.1"), ip("192.0.2.2"));
        exhaust(&strangers, client, Instant::now() + EVERY);
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(strangers.turn(client, Duration::from_secs(600)).await.ok().unwrap());
        }
        assert!(strangers.turn(client, Duration::ZERO).await.is_err(), "its patience is over");
        assert!(strangers.turn(other, Duration::ZERO).await.is_ok());
        let mut waiting: Vec<_> =
            (TURNS..WAITING).map(|_| Box::pin(strangers.turn(client, Duration::from_secs(600)))).collect();
        for turn in &mut waiting {
            assert!(futures::poll!(turn).is_pending());
        }
        let full = Box::pin(strangers.turn(client, Duration::from_secs(600)));
        assert!(matches!(futures::poll!(full), std::task::Poll::Ready(Err(_))));
        turns.pop();
        assert!(waiting.remove(0).await.is_ok());
    }
}
