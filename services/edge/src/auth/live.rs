//! Calls that run, by the key that made them, so that they end when the key may not go on.
//!
//! A call enters before it is admitted and leaves when it is dropped; in between it costs nothing. What is heard of a
//! key, a person or a project puts the keys it may concern up for a look, and so does a key's own end; [`watch`] takes
//! all of them to the database in one question. They are asked for by id, so a new secret ends nothing. Calls of one key
//! are apart by what they stand on, the scope and the route that let them in: a call whose key keeps both goes on.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use domain::{ApiKeyId, ProjectId, Scope, UserId};
use runtime::Cut;
use store::principals::Standing;
use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::{Known, has_scope, is_allowed};
use crate::error::{EdgeError, KeyState, shown};
use crate::state::Shared;

/// The most keys of one question.
const PAGE: usize = 500;

/// Before a question that failed is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a call has to end before its answer is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// This process is ending.
    Stopping,
    /// The key may not be used any more.
    Key(KeyState),
    /// The key has not the scope any more.
    Scope(Scope),
    /// The key is not granted to the project any more.
    NotGranted,
    /// The key may not call the route of this name any more.
    Route(Arc<str>),
}

impl From<Ended> for EdgeError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Stopping => Self::ShuttingDown,
            Ended::Key(state) => Self::KeyState(state),
            Ended::Scope(scope) => Self::Scope(scope),
            Ended::NotGranted => Self::ProjectNotGranted,
            // As for whoever asks anew: what a key may not call does not exist for it.
            Ended::Route(name) => Self::ModelNotFound { model: shown(&name) },
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

/// What calls stand on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    key: ApiKeyId,
    project: ProjectId,
    /// What the key had to be for, where that is asked.
    scope: Option<Scope>,
    /// Where they go, once that is known.
    route: Option<Arc<str>>,
}

#[derive(Default)]
struct State {
    calls: HashMap<Place, Calls>,
    /// How often keys were put up for a look.
    heard: u64,
    /// When the first of the keys has to be looked at whatever is heard.
    soonest: Option<Instant>,
}

/// The calls that stand on the same.
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
    /// What had been heard when its key was found good.
    heard: u64,
    first: Among,
    /// Since its route is known.
    routed: OnceLock<Among>,
}

/// Which calls a call is among.
struct Among {
    place: Place,
    signal: Arc<Signal>,
}

impl Entered {
    fn among(&self) -> &Among {
        self.routed.get().unwrap_or(&self.first)
    }
}

impl LiveCall {
    /// The call goes by a route that its key may call, as far as is known here. To be said before anybody waits for its
    /// end.
    pub(crate) fn goes_by(&self, route: &str) {
        self.0.calls.route(&self.0, route);
    }

    /// Waits until the call has to end.
    pub(crate) async fn ended(&self) -> Ended {
        self.0.among().signal.given.cancelled().await;
        self.why()
    }

    /// Whether it has to end by now. Asked before every event: unlike a wait it leaves no trace.
    pub(crate) fn has_ended(&self) -> Option<Ended> {
        self.0.among().signal.given.is_cancelled().then(|| self.why())
    }

    fn why(&self) -> Ended {
        self.0.among().signal.why.get().cloned().unwrap_or(Ended::Stopping)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.calls.state().leave(self.among());
    }
}

impl State {
    /// Takes a call out. Gives when its key ends, unless the call is out because it was told to end.
    fn leave(&mut self, among: &Among) -> Option<OfKey> {
        // Others that stand on the same may have come since those that were told to end were taken out.
        let calls = self.calls.get_mut(&among.place).filter(|calls| Arc::ptr_eq(&calls.signal, &among.signal))?;
        let of = OfKey { owner: calls.owner, expires: calls.expires };
        calls.count -= 1;
        if calls.count == 0 {
            self.calls.remove(&among.place);
        }
        Some(of)
    }

    fn enter(&mut self, place: Place, of: OfKey, cut: &Cut) -> (Among, &mut Calls) {
        let calls = self.calls.entry(place.clone()).or_insert_with(|| Calls {
            count: 0,
            owner: of.owner,
            expires: of.expires,
            is_due: false,
            signal: Arc::new(Signal { given: cut.narrowed(), why: OnceLock::new() }),
        });
        calls.count += 1;
        (Among { place, signal: Arc::clone(&calls.signal) }, calls)
    }
}

/// What is known of the key of a call.
#[derive(Clone, Copy)]
struct OfKey {
    owner: Option<UserId>,
    expires: Option<Instant>,
}

impl LiveCalls {
    pub(crate) fn new(cut: Cut) -> Arc<Self> {
        Arc::new(Self { cut, state: Mutex::default(), changed: Notify::new() })
    }

    /// Enters a call. To be done before it is admitted: what changes until then admission sees, and what changes later
    /// is heard of here.
    pub(super) fn enter(self: &Arc<Self>, known: &Known, project: ProjectId, scope: Option<Scope>) -> LiveCall {
        let place = Place { key: known.principal.key, project, scope, route: None };
        let of = OfKey { owner: known.principal.owner.map(|owner| owner.user), expires: known.ends };
        let mut state = self.state();
        let heard = state.heard;
        let (first, calls) = state.enter(place, of, &self.cut);
        let expires = calls.expires;
        if expires.is_some() && (state.soonest.is_none() || expires < state.soonest) {
            state.soonest = expires;
            self.changed.notify_one();
        }
        drop(state);
        LiveCall(Arc::new(Entered { calls: Arc::clone(self), heard, first, routed: OnceLock::new() }))
    }

    /// Puts a call among those of its route. Unless it was told to end: then it ends as it is.
    fn route(&self, call: &Entered, route: &str) {
        let place = Place { route: Some(route.into()), ..call.first.place.clone() };
        let mut state = self.state();
        if call.routed.get().is_some() {
            return;
        }
        let Some(of) = state.leave(&call.first) else { return };
        let has_heard = state.heard != call.heard;
        let (routed, calls) = state.enter(place, of, &self.cut);
        // It may have been about the key, and the look at it too early to know of the route.
        calls.is_due |= has_heard;
        let _ = call.routed.set(routed);
        drop(state);
        if has_heard {
            self.changed.notify_one();
        }
    }

    /// A key was changed, or was let in by what may be out of date.
    pub(crate) fn key_changed(&self, key: ApiKeyId) {
        self.look_at(|of, _| of.key == key);
    }

    /// A person was changed.
    pub(crate) fn user_changed(&self, user: UserId) {
        self.look_at(|_, calls| calls.owner == Some(user));
    }

    /// A project was changed or removed.
    pub(crate) fn project_changed(&self, project: ProjectId) {
        self.look_at(|of, _| of.project == project);
    }

    /// Anything may have changed.
    pub(crate) fn all_changed(&self) {
        self.look_at(|_, _| true);
    }

    fn look_at(&self, concerns: impl Fn(&Place, &Calls) -> bool) {
        let mut state = self.state();
        state.heard += 1;
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
        for (place, calls) in &mut state.calls {
            let has_ended = calls.expires.take_if(|expires| *expires <= now).is_some();
            if std::mem::take(&mut calls.is_due) || has_ended {
                due.insert(place.key);
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
        let State { calls, soonest, .. } = &mut *state;
        calls.retain(|place, calls| {
            if !asked.contains(&place.key) {
                return true;
            }
            let standing = standings.get(&place.key).copied();
            if let Some(why) = verdict(standing, place) {
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
            let reason = why.reason();
            // Before the signal: whoever gets it asks why.
            let _ = signal.why.set(why);
            signal.given.cancel();
            tracing::info!(count, reason, "calls of a key that may not go on are ended");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is given back, so a poisoned one still guards a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ended {
    fn reason(&self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::Key(KeyState::Revoked) => "revoked",
            Self::Key(KeyState::Expired) => "expired",
            Self::Key(KeyState::OwnerInactive) => "owner inactive",
            Self::Scope(_) => "scope taken away",
            Self::NotGranted => "not granted",
            Self::Route(_) => "route taken away",
        }
    }
}

/// Why calls may not go on, in the order in which a new one would be told.
fn verdict(standing: Option<&Standing>, place: &Place) -> Option<Ended> {
    let Some(standing) = standing else { return Some(Ended::Key(KeyState::Revoked)) };
    if standing.revoked {
        Some(Ended::Key(KeyState::Revoked))
    } else if standing.expired {
        Some(Ended::Key(KeyState::Expired))
    } else if !standing.owner_active {
        Some(Ended::Key(KeyState::OwnerInactive))
    } else if let Some(scope) = place.scope.filter(|scope| !has_scope(standing.kind, &standing.scopes, *scope)) {
        Some(Ended::Scope(scope))
    } else if !standing.projects.contains(&place.project) {
        Some(Ended::NotGranted)
    } else {
        let lost = place.route.as_ref().filter(|route| !is_allowed(standing.allowed_routes.as_deref(), route));
        lost.map(|route| Ended::Route(Arc::clone(route)))
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
                        edge.live.look_at(|of, _| keys.contains(&of.key));
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests;
