//! Whether the process may get work, and what to tell those who ask.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a ready process stays ready without its database: a restart of PostgreSQL must not take every replica out
/// of service at once.
const DATABASE_GRACE: Duration = Duration::from_secs(30);

/// The name of the entry that a newer schema leaves in `degraded`.
const SCHEMA_AHEAD: &str = "schema_ahead";

/// The name of the entry that a database out of reach leaves in `degraded`; the status after the grace.
const DATABASE_UNREACHABLE: &str = "database_unreachable";

/// The readiness of one process, shared by those who decide it and those who report it.
///
/// A process is ready when its start is complete, the schema is at least the one it was built for, the database was
/// reached within the last 30 s, nothing blocks it and it is not draining.
#[derive(Clone, Debug)]
pub struct Health {
    state: watch::Sender<State>,
}

#[derive(Clone, Debug)]
struct State {
    expected: i32,
    applied: Option<i32>,
    started: bool,
    draining: bool,
    database_lost: Option<Instant>,
    blocked: BTreeSet<&'static str>,
    degraded: BTreeSet<&'static str>,
}

/// What `/readyz` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `starting`, `migrating`, `ready`, `draining`, `database_unreachable`, or the name of what blocks the process.
    pub status: &'static str,
    /// The schema version that the database has, once it was seen.
    pub applied: Option<i32>,
    /// The schema version that this build was made for.
    pub expected: i32,
    /// What is not as it should be although the process works.
    pub degraded: Vec<&'static str>,
    /// Whether the process may get work.
    #[serde(skip)]
    pub ready: bool,
}

impl Health {
    /// The health of a process that is starting, built for the given schema version.
    #[must_use]
    pub fn new(expected: i32) -> Self {
        let state = State {
            expected,
            applied: None,
            started: false,
            draining: false,
            database_lost: None,
            blocked: BTreeSet::new(),
            degraded: BTreeSet::new(),
        };
        Self { state: watch::Sender::new(state) }
    }

    /// The database was reached and has this schema version.
    pub fn database_seen(&self, applied: i32) {
        self.change(|state| {
            state.applied = Some(applied);
            state.database_lost = None;
        });
    }

    /// The database could not be reached. Only the first time of a row counts for the grace.
    pub fn database_lost(&self) {
        self.change(|state| {
            state.database_lost.get_or_insert_with(Instant::now);
        });
    }

    /// Everything that the service needs to work is there.
    pub fn started(&self) {
        self.change(|state| state.started = true);
    }

    /// The process is ending. There is no way back.
    pub fn draining(&self) {
        self.change(|state| state.draining = true);
    }

    /// Makes the process not ready under the given status, such as `credential_unreadable`, until it is unblocked.
    pub fn block(&self, status: &'static str) {
        self.change(|state| {
            state.blocked.insert(status);
        });
    }

    /// Takes a block back.
    pub fn unblock(&self, status: &'static str) {
        self.change(|state| {
            state.blocked.remove(status);
        });
    }

    /// Adds or takes back an entry of `degraded`; the process stays ready.
    pub fn degrade(&self, name: &'static str, degraded: bool) {
        self.change(|state| {
            if degraded {
                state.degraded.insert(name);
            } else {
                state.degraded.remove(name);
            }
        });
    }

    /// The report as of now.
    #[must_use]
    pub fn report(&self) -> Report {
        self.state.borrow().report(Instant::now())
    }

    /// Waits until the process is ready, or for ever.
    pub async fn ready(&self) {
        let mut follower = self.follow();
        while !follower.report().ready {
            follower.changed().await;
        }
    }

    /// Follows the report as it changes.
    #[must_use]
    pub fn follow(&self) -> Follower {
        Follower { _alive: self.clone(), changes: self.state.subscribe() }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }
}

/// Sees each change of the report, those that come with time included.
pub struct Follower {
    _alive: Health,
    changes: watch::Receiver<State>,
}

impl Follower {
    /// The report as of now. [`Follower::changed`] waits for changes after this one.
    pub fn report(&mut self) -> Report {
        self.changes.borrow_and_update().report(Instant::now())
    }

    /// Waits until the report may have changed.
    pub async fn changed(&mut self) {
        let grace_ends = self.changes.borrow().database_lost.map(|since| since + DATABASE_GRACE);
        let later = grace_ends.filter(|at| *at > Instant::now());
        let time = async {
            match later {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender lives as long as `_alive` does, so this never fails.
            _ = self.changes.changed() => {}
            () = time => {}
        }
    }
}

impl State {
    fn report(&self, now: Instant) -> Report {
        let status = self.status(now);
        let mut degraded: BTreeSet<&'static str> = self.degraded.clone();
        if self.applied.is_some_and(|applied| applied > self.expected) {
            degraded.insert(SCHEMA_AHEAD);
        }
        if self.database_lost.is_some() {
            degraded.insert(DATABASE_UNREACHABLE);
        }
        Report {
            status: status.unwrap_or("ready"),
            applied: self.applied,
            expected: self.expected,
            degraded: degraded.into_iter().collect(),
            ready: status.is_none(),
        }
    }

    /// Why the process is not ready, if it is not.
    fn status(&self, now: Instant) -> Option<&'static str> {
        if self.draining {
            return Some("draining");
        }
        if self.applied.is_some_and(|applied| applied < self.expected) {
            return Some("migrating");
        }
        if self.applied.is_none() || !self.started {
            return Some("starting");
        }
        if self.database_lost.is_some_and(|since| now.duration_since(since) >= DATABASE_GRACE) {
            return Some(DATABASE_UNREACHABLE);
        }
        self.blocked.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Health {
        let health = Health::new(3);
        health.database_seen(3);
        health.started();
        health
    }

    fn status(health: &Health) -> (&'static str, bool) {
        let report = health.report();
        (report.status, report.ready)
    }

    #[test]
    fn a_process_is_ready_once_the_schema_is_there_and_its_start_is_complete() {
        let health = Health::new(3);
        assert_eq!(status(&health), ("starting", false));
        health.database_seen(2);
        assert_eq!(status(&health), ("migrating", false));
        health.started();
        assert_eq!(status(&health), ("migrating", false));
        health.database_seen(3);
        assert_eq!(status(&health), ("ready", true));
        assert!(health.report().degraded.is_empty());
    }

    #[test]
    fn an_older_build_on_a_newer_schema_works_and_says_so() {
        let health = ready();
        health.database_seen(4);
        let report = health.report();
        assert!(report.ready);
        assert_eq!((report.applied, report.expected, report.degraded), (Some(4), 3, vec!["schema_ahead"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_out_of_reach_counts_after_the_grace_only() {
        let health = ready();
        health.database_lost();
        tokio::time::advance(Duration::from_secs(29)).await;
        health.database_lost();
        let report = health.report();
        assert_eq!((report.status, report.degraded), ("ready", vec!["database_unreachable"]));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(status(&health), ("database_unreachable", false));
        health.database_seen(3);
        assert_eq!(status(&health), ("ready", true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_sees_the_grace_end() {
        let health = ready();
        let mut follower = health.follow();
        health.database_lost();
        follower.changed().await;
        assert!(follower.report().ready);
        // Nobody says anything: it is the time that changes it.
        follower.changed().await;
        assert_eq!(follower.report().status, "database_unreachable");
        health.database_seen(3);
        follower.changed().await;
        assert!(follower.report().ready);
    }

    #[test]
    fn a_block_names_itself_and_draining_is_final() {
        let health = ready();
        health.block("credential_unreadable");
        assert_eq!(status(&health), ("credential_unreadable", false));
        health.unblock("credential_unreadable");
        assert_eq!(status(&health), ("ready", true));
        health.degrade("notifications_off", true);
        assert_eq!(health.report().degraded, ["notifications_off"]);
        health.degrade("notifications_off", false);
        health.draining();
        health.database_seen(3);
        health.started();
        assert_eq!(status(&health), ("draining", false));
    }
}
