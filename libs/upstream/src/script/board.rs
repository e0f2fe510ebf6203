//! Scripts waiting to be met and calls seen.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use super::{Behaviour, Counters, Log, Outcome, Script, SeenCall, Wait, gate::Gate};
use crate::answer::unix_millis;

/// Everything the routes under `/script` read and write.
#[derive(Debug)]
pub(crate) struct Board {
    plays: Mutex<HashMap<String, Play>>,
    log: Mutex<VecDeque<SeenCall>>,
    capacity: usize,
    /// All but the bytes, which change too often to wake anyone for.
    counters: watch::Sender<Counters>,
    bytes_sent: AtomicU64,
    gate: Gate,
    next_id: AtomicU64,
}

/// The script of one path.
#[derive(Debug, Default)]
struct Play {
    queue: VecDeque<Behaviour>,
    default: Option<Arc<Behaviour>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            plays: Mutex::default(),
            log: Mutex::default(),
            capacity,
            counters: watch::Sender::default(),
            bytes_sent: AtomicU64::new(0),
            gate: Gate::default(),
            next_id: AtomicU64::new(1),
        })
    }

    pub(crate) fn add(&self, script: Script) {
        let mut plays = locked(&self.plays);
        let play = plays.entry(script.path).or_default();
        play.queue.extend(script.queue);
        if script.default.is_some() {
            play.default = script.default.map(Arc::new);
        }
    }

    /// The behaviour the next call to `path` meets; a queued one is used up.
    pub(crate) fn next(&self, path: &str) -> Option<Arc<Behaviour>> {
        let mut plays = locked(&self.plays);
        [path, "*"].into_iter().find_map(|path| {
            let play = plays.get_mut(path)?;
            play.queue.pop_front().map(Arc::new).or_else(|| play.default.clone())
        })
    }

    /// Forgets scripts, log and counts, and lets all held calls go on. Open calls stay counted as open.
    pub(crate) fn clear(&self) {
        locked(&self.plays).clear();
        locked(&self.log).clear();
        self.bytes_sent.store(0, Ordering::Relaxed);
        self.counters.send_modify(|counters| {
            *counters = Counters { open: counters.open, held: counters.held, ..Counters::default() };
        });
        self.gate.release(None);
    }

    /// Whether calls are noted, not only counted.
    pub(crate) fn keeps_calls(&self) -> bool {
        self.capacity > 0
    }

    pub(crate) fn release(&self, count: Option<usize>) {
        self.gate.release(count);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.with_bytes(*self.counters.borrow())
    }

    fn with_bytes(&self, counters: Counters) -> Counters {
        Counters { bytes_sent: self.bytes_sent.load(Ordering::Relaxed), ..counters }
    }

    /// The calls after number `after` that the log still has.
    pub(crate) fn log(&self, after: u64) -> Log {
        let calls = locked(&self.log).iter().filter(|call| call.id > after).cloned().collect();
        Log { calls, counters: self.counters() }
    }

    /// Waits until the counters are as asked for; the caller sets the deadline.
    pub(crate) async fn wait(&self, wait: &Wait) -> Counters {
        let mut changes = self.counters.subscribe();
        let met = changes.wait_for(|counters| wait.is_met(counters)).await.map(|counters| *counters);
        // The sender is in `self`, so waiting does not fail.
        self.with_bytes(met.unwrap_or_default())
    }

    /// Notes a call and answers with its number.
    pub(crate) fn see(self: &Arc<Self>, call: impl FnOnce() -> SeenCall) -> Seen {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if self.capacity > 0 {
            let call = SeenCall { id, at_ms: unix_millis(), ..call() };
            let mut log = locked(&self.log);
            while log.len() >= self.capacity {
                log.pop_front();
            }
            log.push_back(call);
        }
        self.counters.send_modify(|counters| {
            counters.requests += 1;
            counters.open += 1;
        });
        Seen { board: Some(Arc::clone(self)), id, end: Outcome::Aborted, status: None, bytes_sent: 0 }
    }

    /// Waits in the gate, counted as held.
    async fn hold(&self) {
        let ticket = self.gate.enter();
        let _held = Held::new(&self.counters);
        // An error means the board is gone, which ends the wait as well.
        let _ = ticket.await;
    }
}

/// Counts a held call for as long as it waits.
struct Held<'a>(&'a watch::Sender<Counters>);

impl<'a> Held<'a> {
    fn new(counters: &'a watch::Sender<Counters>) -> Self {
        counters.send_modify(|counters| counters.held += 1);
        Self(counters)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|counters| counters.held = counters.held.saturating_sub(1));
    }
}

/// A call in progress. When it is dropped the call is over, and the client left unless someone said otherwise.
#[derive(Debug)]
pub(crate) struct Seen {
    board: Option<Arc<Board>>,
    id: u64,
    end: Outcome,
    status: Option<u16>,
    bytes_sent: u64,
}

impl Seen {
    /// A call nobody keeps account of.
    pub(crate) fn unseen() -> Self {
        Self { board: None, id: 0, end: Outcome::Aborted, status: None, bytes_sent: 0 }
    }

    pub(crate) fn answered_with(&mut self, status: u16) {
        self.status = Some(status);
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.bytes_sent += bytes as u64;
        if let Some(board) = &self.board {
            board.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn ends(&mut self, end: Outcome) {
        self.end = end;
    }

    pub(crate) async fn hold(&self) {
        if let Some(board) = &self.board {
            board.hold().await;
        }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        let Some(board) = &self.board else { return };
        {
            let mut log = locked(&board.log);
            if let Some(call) = log.iter_mut().rev().find(|call| call.id == self.id) {
                call.end = Some(self.end);
                call.status = self.status;
                call.bytes_sent = self.bytes_sent;
            }
        }
        board.counters.send_modify(|counters| {
            counters.open = counters.open.saturating_sub(1);
            counters.finished += 1;
            counters.aborted += u64::from(self.end == Outcome::Aborted);
        });
    }
}
