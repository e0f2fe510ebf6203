//! Clients that send keys which do not exist.
//!
//! A well-formed key that does not exist costs a question to the database, and only that question tells it from one that
//! does. So every client address may ask for a few of them, and some more as time goes by; what is still being asked
//! counts until it turns out to exist. A client that has asked for too many is told so, and its questions about keys that
//! are not known here yet take turns with those of others like it: whatever it sends, the database is left to the rest.
//! Keys that are known here are answered without any of this.

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

/// Leave to ask the database for one key. It is counted like a key that does not exist until it turns out that it does,
/// so that nobody gets more questions by sending them all at once; and remains so when the call is given up.
#[must_use]
pub(super) struct Turn<'a> {
    strangers: &'a Strangers,
    /// Whose account it is in. None for one that was waited for, which is counted when the key does not exist.
    counted: Option<Account>,
    client: IpAddr,
    _permits: Option<(Option<SemaphorePermit<'a>>, SemaphorePermit<'a>)>,
}

/// Why a client may not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTurn {
    /// It has asked for too many keys that do not exist; when to come back.
    TooMany(Duration),
    /// Its other questions have not been answered yet.
    Slow,
}

/// Who is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account {
    Of(IpAddr),
    Others,
}

#[derive(Default)]
struct Seen {
    addresses: HashMap<IpAddr, Count>,
    others: Option<Count>,
    swept: Option<Instant>,
    told: Option<Instant>,
}

/// What is held against an address.
#[derive(Clone, Copy)]
struct Count {
    /// The moment from which on it is nothing. Every question moves it by [`EVERY`], and it is never further away than
    /// [`BURST`] times that.
    until: Instant,
    /// How many of the questions are not answered yet.
    open: u32,
}

impl Strangers {
    pub(crate) fn new() -> Self {
        Self::with(ADDRESSES)
    }

    fn with(capacity: usize) -> Self {
        let (waiting, turns) = (Semaphore::new(WAITING), Semaphore::new(TURNS));
        Self { capacity, seen: Mutex::default(), waiting, turns }
    }

    /// Waits for a turn to ask the database, where the address needs one.
    pub(super) async fn turn(&self, client: IpAddr, patience: Duration) -> Result<Turn<'_>, NoTurn> {
        let now = Instant::now();
        let is_guilty = match self.seen().count(client, self.capacity, now) {
            Ok(account) => {
                return Ok(Turn { strangers: self, counted: Some(account), client, _permits: None });
            }
            Err(count) => count.without_open().excess(now).is_some(),
        };
        let too_many = NoTurn::TooMany(EVERY);
        // The rest may be good keys that are all new here: they wait, and are told nothing that they have not done.
        let place = if is_guilty { Some(self.waiting.try_acquire().map_err(|_| too_many)?) } else { None };
        let late = if is_guilty { too_many } else { NoTurn::Slow };
        // Acquiring itself fails only when the semaphore is closed, which nobody does.
        let turn = timeout(patience, self.turns.acquire()).await.map_err(|_| late)?.map_err(|_| late)?;
        Ok(Turn { strangers: self, counted: None, client, _permits: Some((place, turn)) })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// There is no such key. Fails, with when to come back, when there were too many of them before.
    pub(super) fn missed(self, now: Instant) -> Result<(), Duration> {
        if self.counted.is_some() {
            return Ok(());
        }
        let mut seen = self.strangers.seen();
        let network = network(self.client);
        match seen.count(self.client, self.strangers.capacity, now) {
            Ok(account) => {
                seen.close(account);
                Ok(())
            }
            Err(count) => {
                if seen.told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY) {
                    seen.told = Some(now);
                    tracing::warn!(%network, "clients that send API keys which do not exist are throttled");
                }
                Err(count.excess(now).unwrap_or(EVERY))
            }
        }
    }

    /// Nothing is held against the client: the key exists, or nobody could say.
    pub(super) fn forgiven(mut self) {
        if let Some(account) = self.counted.take() {
            self.strangers.seen().give_back(account);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(account) = self.counted {
            self.strangers.seen().close(account);
        }
    }
}

impl Seen {
    /// Counts a question that is not answered yet, if there is room for one.
    fn count(&mut self, client: IpAddr, capacity: usize, now: Instant) -> Result<Account, Count> {
        let network = network(client);
        if self.addresses.len() >= capacity && !self.addresses.contains_key(&network) {
            self.sweep(now);
        }
        let has_room = self.addresses.len() < capacity || self.addresses.contains_key(&network);
        let fresh = Count { until: now, open: 0 };
        let (account, count) = if has_room {
            (Account::Of(network), self.addresses.entry(network).or_insert(fresh))
        } else {
            (Account::Others, self.others.get_or_insert(fresh))
        };
        if count.excess(now).is_some() {
            return Err(*count);
        }
        count.until = count.until.max(now) + EVERY;
        count.open += 1;
        Ok(account)
    }

    /// A question is answered.
    fn close(&mut self, account: Account) {
        if let Some(count) = self.of(account) {
            count.open = count.open.saturating_sub(1);
        }
    }

    /// A question should not have been counted.
    fn give_back(&mut self, account: Account) {
        if let Some(count) = self.of(account) {
            *count = count.without(1);
            count.open = count.open.saturating_sub(1);
        }
    }

    fn of(&mut self, account: Account) -> Option<&mut Count> {
        match account {
            Account::Of(network) => self.addresses.get_mut(&network),
            Account::Others => self.others.as_mut(),
        }
    }

    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP_EVERY) {
            return;
        }
        self.swept = Some(now);
        self.addresses.retain(|_, count| count.until > now || count.open > 0);
    }
}

impl Count {
    /// How long until one more may be asked for, if not now.
    fn excess(self, now: Instant) -> Option<Duration> {
        let held = self.until.saturating_duration_since(now) + EVERY;
        held.checked_sub(BURST * EVERY).filter(|excess| !excess.is_zero())
    }

    /// What is held without questions that may be about good keys.
    fn without_open(self) -> Self {
        self.without(self.open)
    }

    fn without(self, questions: u32) -> Self {
        Self { until: self.until.checked_sub(questions * EVERY).unwrap_or(self.until), ..self }
    }
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

    /// Asks for a key that does not exist, if that needs no waiting.
    fn miss(strangers: &Strangers, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let account =
            strangers.seen().count(client, strangers.capacity, now).map_err(|count| count.excess(now).unwrap())?;
        strangers.seen().close(account);
        Ok(())
    }

    fn exhaust(strangers: &Strangers, client: IpAddr, now: Instant) -> Duration {
        for _ in 0..BURST {
            assert_eq!(miss(strangers, client, now), Ok(()));
        }
        miss(strangers, client, now).unwrap_err()
    }

    const PATIENCE: Duration = Duration::from_secs(600);

    #[test]
    fn an_address_has_a_few_tries_and_one_more_from_time_to_time() {
        let (strangers, now) = (Strangers::new(), Instant::now());
        let client = ip("192.0.2.1");
        assert_eq!(exhaust(&strangers, client, now), EVERY);
        assert_eq!(miss(&strangers, ip("192.0.2.2"), now), Ok(()));
        let later = now + EVERY / 2;
        assert_eq!(miss(&strangers, client, later), Err(EVERY / 2), "being told does not make it longer");
        let later = now + EVERY;
        assert_eq!(miss(&strangers, client, later), Ok(()));
        assert_eq!(miss(&strangers, client, later), Err(EVERY));
        exhaust(&strangers, client, later + BURST * EVERY);
    }

    #[test]
    fn all_addresses_of_one_host_are_one_client() {
        let (strangers, now) = (Strangers::new(), Instant::now());
        for last in 0..BURST {
            assert_eq!(miss(&strangers, ip(&format!("2001:db8:1:2:{last:x}::1")), now), Ok(()));
        }
        assert_eq!(miss(&strangers, ip("2001:db8:1:2:ffff::"), now), Err(EVERY));
        assert_eq!(miss(&strangers, ip("2001:db8:1:3::1"), now), Ok(()));
        exhaust(&strangers, ip("::ffff:192.0.2.1"), now);
        assert_eq!(miss(&strangers, ip("192.0.2.1"), now), Err(EVERY));
    }

    #[test]
    fn addresses_without_number_take_bounded_memory_and_share_what_is_left() {
        let (strangers, now) = (Strangers::with(4), Instant::now());
        for host in 1..=4_u8 {
            assert_eq!(miss(&strangers, IpAddr::from([192, 0, 2, host]), now), Ok(()));
        }
        let mut refused = 0;
        for host in 5..=250_u8 {
            refused += u32::from(miss(&strangers, IpAddr::from([192, 0, 2, host]), now).is_err());
        }
        assert_eq!(refused, 246 - BURST);
        assert_eq!(strangers.seen().addresses.len(), 4);
        assert_eq!(miss(&strangers, ip("192.0.2.1"), now), Ok(()), "who was there before has its own");
        let later = now + 2 * EVERY;
        assert_eq!(miss(&strangers, ip("198.51.100.1"), later), Ok(()), "those that have rested make room");
        assert_eq!(strangers.seen().addresses.len(), 1);
    }

    #[tokio::test]
    async fn throttled_clients_take_turns_and_nobody_else_waits() {
        let (strangers, client, other) = (Strangers::new(), ip("192.0.2.1"), ip("192.0.2.2"));
        exhaust(&strangers, client, Instant::now() + EVERY);
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(strangers.turn(client, PATIENCE).await.ok().unwrap());
        }
        assert_eq!(strangers.turn(client, Duration::ZERO).await.err(), Some(NoTurn::TooMany(EVERY)), "it is impatient");
        assert!(strangers.turn(other, Duration::ZERO).await.is_ok());
        let mut waiting: Vec<_> = (TURNS..WAITING).map(|_| Box::pin(strangers.turn(client, PATIENCE))).collect();
        for turn in &mut waiting {
            assert!(futures::poll!(turn).is_pending());
        }
        let full = Box::pin(strangers.turn(client, PATIENCE));
        assert!(matches!(futures::poll!(full), std::task::Poll::Ready(Err(_))));
        turns.pop();
        assert!(waiting.remove(0).await.is_ok());
    }

    #[tokio::test]
    async fn keys_that_are_sent_at_once_are_counted_before_anybody_knows_them() {
        let (strangers, client) = (Strangers::new(), ip("192.0.2.1"));
        let mut open = Vec::new();
        for _ in 0..BURST {
            open.push(strangers.turn(client, Duration::ZERO).await.unwrap());
        }
        for _ in 0..TURNS {
            open.push(strangers.turn(client, PATIENCE).await.unwrap());
        }
        // However many there are: nobody knows yet whether they are good.
        let mut waiting: Vec<_> = (0..2 * WAITING).map(|_| Box::pin(strangers.turn(client, PATIENCE))).collect();
        for turn in &mut waiting {
            assert!(futures::poll!(turn).is_pending());
        }
        drop(waiting);
        assert_eq!(strangers.turn(client, Duration::ZERO).await.err(), Some(NoTurn::Slow));

        let now = Instant::now();
        let late = open.split_off(BURST as usize);
        assert!(late.into_iter().all(|turn| turn.missed(now).is_err()));
        let mut open = open.into_iter();
        // A good one, one that nobody waits for any more, and the bad ones.
        open.next().unwrap().forgiven();
        drop(open.next());
        assert!(open.all(|turn| turn.missed(now).is_ok()));
        assert_eq!(miss(&strangers, client, now), Ok(()), "of the good one nothing is left");
        assert!(miss(&strangers, client, now).is_err());
    }
}
