//! Calls that run, by the key that made them, so that they end when the key may not go on.
//!
//! A call enters before it is admitted and leaves when it is dropped; in between it costs nothing. What is heard of a
//! key, a person or a project puts the keys it may concern up for a look, and so does a key's own end; [`watch`] takes
//! all of them to the database in one question. They are asked for by id, so a new secret ends nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use domain::{ApiKeyId, ProjectId, UserId};
use runtime::Cut;
use store::principals::Standing;
use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::Known;
use crate::error::{EdgeError, KeyState};
use crate::state::Shared;

/// The most keys of one question.
const PAGE: usize = 500;

/// Before a question that failed is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a call has to end before its answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// This process is ending.
    Stopping,
    /// The key may not be used any more.
    Key(KeyState),
    /// The key is not granted to the project any more.
    NotGranted,
}

impl From<Ended> for EdgeError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Stopping => Self::ShuttingDown,
            Ended::Key(state) => Self::KeyState(state),
            Ended::NotGranted => Self::ProjectNotGranted,
        }
    }
}

/// The calls that run in this process.
pub(crate) struct LiveCalls {
    cut: Cut,
    state: Mutex<State>,
    /// Told when a key is up for a look, or one expires sooner than those known before.
    changed: Notify,
}

type Place = (ApiKeyId, ProjectId);

#[derive(Default)]
struct State {
    calls: HashMap<Place, Calls>,
    /// When the first of the keys has to be looked at whatever is heard.
    soonest: Option<Instant>,
}

/// The calls of one key in one project.
struct Calls {
    count: usize,
    owner: Option<UserId>,
    expires: Option<Instant>,
    is_due: bool,
    signal: Arc<Signal>,
}

/// What tells them to end. It is given when the process cuts its answers, too.
struct Signal {
    given: CancellationToken,
    why: OnceLock<Ended>,
}

/// A call that runs. The last clone takes it out.
#[derive(Clone)]
pub(crate) struct LiveCall(Arc<Entered>);

struct Entered {
    calls: Arc<LiveCalls>,
    place: Place,
    signal: Arc<Signal>,
}

impl LiveCall {
    /// Waits until the call has to end.
    pub(crate) async fn ended(&self) -> Ended {
        self.0.signal.given.cancelled().await;
        self.why()
    }

    /// Whether it has to end by now. Asked before every event: unlike a wait it leaves no trace.
    pub(crate) fn has_ended(&self) -> Option<Ended> {
        self.0.signal.given.is_cancelled().then(|| self.why())
    }

    fn why(&self) -> Ended {
        self.0.signal.why.get().copied().unwrap_or(Ended::Stopping)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        let Some(calls) = state.calls.get_mut(&self.place) else { return };
        // Those that were told to end are out already, and others of the same key may have come since.
        if !Arc::ptr_eq(&calls.signal, &self.signal) {
            return;
        }
        calls.count -= 1;
        if calls.count == 0 {
            state.calls.remove(&self.place);
        }
    }
}

impl LiveCalls {
    pub(crate) fn new(cut: Cut) -> Arc<Self> {
        Arc::new(Self { cut, state: Mutex::default(), changed: Notify::new() })
    }

    /// Enters a call. To be done before it is admitted: what changes until then admission sees, and what changes later
    /// is heard of here.
    pub(super) fn enter(self: &Arc<Self>, known: &Known, project: ProjectId) -> LiveCall {
        let place = (known.principal.key, project);
        let mut state = self.state();
        let calls = state.calls.entry(place).or_insert_with(|| Calls {
            count: 0,
            owner: known.principal.owner.map(|owner| owner.user),
            expires: known.ends,
            is_due: false,
            signal: Arc::new(Signal { given: self.cut.narrowed(), why: OnceLock::new() }),
        });
        calls.count += 1;
        let (signal, expires) = (Arc::clone(&calls.signal), calls.expires);
        if expires.is_some() && (state.soonest.is_none() || expires < state.soonest) {
            state.soonest = expires;
            self.changed.notify_one();
        }
        drop(state);
        LiveCall(Arc::new(Entered { calls: Arc::clone(self), place, signal }))
    }

    /// A key was changed, or was let in by what may be out of date.
    pub(crate) fn key_changed(&self, key: ApiKeyId) {
        self.look_at(|(of, _), _| *of == key);
    }

    /// A person was changed.
    pub(crate) fn user_changed(&self, user: UserId) {
        self.look_at(|_, calls| calls.owner == Some(user));
    }

    /// A project was changed or removed.
    pub(crate) fn project_changed(&self, project: ProjectId) {
        self.look_at(|(_, of), _| *of == project);
    }

    /// Anything may have changed.
    pub(crate) fn all_changed(&self) {
        self.look_at(|_, _| true);
    }

    fn look_at(&self, concerns: impl Fn(&Place, &Calls) -> bool) {
        let mut state = self.state();
        let mut any = false;
        for (place, calls) in &mut state.calls {
            if concerns(place, calls) {
                (calls.is_due, any) = (true, true);
            }
        }
        drop(state);
        if any {
            self.changed.notify_one();
        }
    }

    async fn until_changed(&self) {
        let soonest = self.state().soonest;
        let expiry = async {
            match soonest {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.changed.notified() => {}
            () = expiry => {}
        }
    }

    /// The keys to be looked at, each once. Finds out anew which will be next.
    fn take_due(&self, now: Instant) -> Vec<ApiKeyId> {
        let mut state = self.state();
        let mut due = HashSet::new();
        let mut soonest: Option<Instant> = None;
        for ((key, _), calls) in &mut state.calls {
            let has_ended = calls.expires.take_if(|expires| *expires <= now).is_some();
            if std::mem::take(&mut calls.is_due) || has_ended {
                due.insert(*key);
            } else if let Some(expires) = calls.expires {
                soonest = Some(soonest.map_or(expires, |soonest| soonest.min(expires)));
            }
        }
        state.soonest = soonest;
        due.into_iter().collect()
    }

    /// Ends the calls of the keys that were asked for and may not go on; notes of the others when they end.
    fn judge(&self, asked: &[ApiKeyId], standings: &[Standing], now: Instant) {
        let asked: HashSet<ApiKeyId> = asked.iter().copied().collect();
        let standings: HashMap<ApiKeyId, &Standing> = standings.iter().map(|found| (found.key, found)).collect();
        let mut ended = Vec::new();
        let mut state = self.state();
        let State { calls, soonest } = &mut *state;
        calls.retain(|(key, project), calls| {
            if !asked.contains(key) {
                return true;
            }
            let standing = standings.get(key).copied();
            if let Some(why) = verdict(standing, *project) {
                ended.push((Arc::clone(&calls.signal), why, calls.count));
                return false;
            }
            calls.expires = standing.and_then(|standing| now.checked_add(standing.expires_in?));
            if calls.expires.is_some() && (soonest.is_none() || calls.expires < *soonest) {
                *soonest = calls.expires;
            }
            true
        });
        drop(state);
        for (signal, why, count) in ended {
            // Before the signal: whoever gets it asks why.
            let _ = signal.why.set(why);
            signal.given.cancel();
            tracing::info!(count, reason = why.reason(), "calls of a key that may not go on are ended");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ended {
    fn reason(self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::Key(KeyState::Revoked) => "revoked",
            Self::Key(KeyState::Expired) => "expired",
            Self::Key(KeyState::OwnerInactive) => "owner inactive",
            Self::NotGranted => "not granted",
        }
    }
}

/// Why a key may not go on in a project, in the order in which a new call would be told.
fn verdict(standing: Option<&Standing>, project: ProjectId) -> Option<Ended> {
    let Some(standing) = standing else { return Some(Ended::Key(KeyState::Revoked)) };
    if standing.revoked {
        Some(Ended::Key(KeyState::Revoked))
    } else if standing.expired {
        Some(Ended::Key(KeyState::Expired))
    } else if !standing.owner_active {
        Some(Ended::Key(KeyState::OwnerInactive))
    } else if !standing.projects.contains(&project) {
        Some(Ended::NotGranted)
    } else {
        None
    }
}

/// Looks at keys as soon as there is reason to, until it is told to stop. While the database is away calls go on.
pub(crate) async fn watch(edge: Shared, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        let mut failing = false;
        loop {
            edge.live.until_changed().await;
            let due = edge.live.take_due(Instant::now());
            for keys in due.chunks(PAGE) {
                match edge.store.in_time(edge.store.list_key_standings(keys)).await {
                    Ok(standings) => {
                        failing = false;
                        edge.live.judge(keys, &standings, Instant::now());
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            let error: &dyn std::error::Error = &error;
                            tracing::warn!(error, "the keys of running calls cannot be looked at, trying on");
                        }
                        let keys: HashSet<&ApiKeyId> = keys.iter().collect();
                        edge.live.look_at(|(key, _), _| keys.contains(key));
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use domain::{KeyKind, Scope};
    use futures::FutureExt;
    use runtime::Listener;
    use store::principals::Principal;

    use super::*;

    const PROJECT: ProjectId = ProjectId(7);

    async fn calls() -> Arc<LiveCalls> {
        LiveCalls::new(Listener::bind("test", ([127, 0, 0, 1], 0).into()).await.unwrap().cut())
    }

    fn known(key: i64, ends: Option<Instant>) -> Known {
        let principal = Principal {
            key: ApiKeyId(key),
            kind: KeyKind::Project,
            name: "k".to_owned(),
            owner: None,
            project: Some(PROJECT),
            default_project: None,
            scopes: vec![Scope::Chat],
            allowed_routes: None,
            revoked: false,
            expired: false,
            expires_in_seconds: None,
            granted: Vec::new(),
            has_limits: false,
            has_cost_budget: false,
        };
        Known { principal, grants: Vec::new(), ends }
    }

    fn standing(key: i64, expires_in: Option<Duration>) -> Standing {
        let (key, projects) = (ApiKeyId(key), vec![PROJECT]);
        Standing { key, revoked: false, expired: false, owner_active: true, expires_in, projects }
    }

    #[tokio::test]
    async fn calls_leave_nothing_behind_and_ended_ones_do_not_take_out_those_that_came_since() {
        let calls = calls().await;
        let first = calls.enter(&known(1, None), PROJECT);
        let second = calls.enter(&known(1, None), PROJECT);
        calls.judge(&[ApiKeyId(1)], &[], Instant::now());
        assert_eq!(first.ended().now_or_never(), Some(Ended::Key(KeyState::Revoked)), "a key that is gone");
        let third = calls.enter(&known(1, None), PROJECT);
        drop((first, second));
        assert_eq!(third.ended().now_or_never(), None);
        calls.judge(&[ApiKeyId(1)], &[standing(1, None)], Instant::now());
        assert_eq!(third.clone().ended().now_or_never(), None);
        assert_eq!(calls.state().calls.len(), 1);
        drop(third);
        assert!(calls.state().calls.is_empty());
    }

    #[tokio::test]
    async fn a_key_is_looked_at_when_it_is_heard_of_and_when_it_ends() {
        let calls = calls().await;
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let _lasting = calls.enter(&known(1, None), PROJECT);
        let _long = calls.enter(&known(2, Some(after(60))), PROJECT);
        let _short = calls.enter(&known(3, Some(after(30))), PROJECT);
        assert_eq!(calls.state().soonest, Some(after(30)));
        assert_eq!(calls.take_due(now), []);
        calls.key_changed(ApiKeyId(1));
        calls.key_changed(ApiKeyId(4));
        assert_eq!(calls.take_due(now), [ApiKeyId(1)]);
        assert_eq!(calls.take_due(now), [], "once");
        assert_eq!(calls.take_due(after(30)), [ApiKeyId(3)]);
        assert_eq!(calls.state().soonest, Some(after(60)));
        // Its end was put off.
        calls.judge(&[ApiKeyId(3)], &[standing(3, Some(Duration::from_secs(10)))], after(30));
        assert_eq!(calls.state().soonest, Some(after(40)));
        calls.project_changed(PROJECT);
        assert_eq!(calls.take_due(now).len(), 3);
    }

    #[test]
    fn the_reason_is_the_one_that_a_new_call_would_be_told() {
        let mut bad = standing(1, None);
        assert_eq!(verdict(Some(&bad), PROJECT), None);
        assert_eq!(verdict(Some(&bad), ProjectId(8)), Some(Ended::NotGranted));
        bad.owner_active = false;
        assert_eq!(verdict(Some(&bad), ProjectId(8)), Some(Ended::Key(KeyState::OwnerInactive)));
        bad.expired = true;
        assert_eq!(verdict(Some(&bad), ProjectId(8)), Some(Ended::Key(KeyState::Expired)));
        bad.revoked = true;
        assert_eq!(verdict(Some(&bad), ProjectId(8)), Some(Ended::Key(KeyState::Revoked)));
    }
}
