//! Who is calling: from the headers of a call to a project and what may be done with it.

mod headers;
mod live;
mod principals;
mod strangers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use domain::{ApiKey, ApiKeyId, KeyHash, KeyKind, ProjectId, Scope};
use http::HeaderMap;

use crate::error::{EdgeError, Failure, KeyState};
use crate::header_text;
use crate::state::Shared;
use headers::{asked_project, forwarded_for, key_text};
use principals::Recalled;

pub(crate) use live::{Ended, LiveCall, LiveCalls, watch};
pub(crate) use principals::{Known, Principals};
use strangers::NoTurn;
pub(crate) use strangers::Strangers;

/// A call's key and project, for handlers.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) project: ProjectId,
    known: Arc<Known>,
    live: LiveCall,
}

impl Caller {
    /// The key, which admission reads again.
    pub(crate) fn key(&self) -> ApiKeyId {
        self.known.principal.key
    }

    /// The call among those that run, which ends when its key may not go on.
    pub(crate) fn live(&self) -> &LiveCall {
        &self.live
    }

    /// Whether the key has limits of its own.
    pub(crate) fn has_limits(&self) -> bool {
        self.known.principal.has_limits
    }

    /// Whether the key has a budget of money of its own.
    pub(crate) fn has_cost_budget(&self) -> bool {
        self.known.principal.has_cost_budget
    }

    /// The key, if it is a person's and not the project's own.
    pub(crate) fn persons_key(&self) -> Option<ApiKeyId> {
        (self.known.principal.kind == KeyKind::Gateway).then(|| self.key())
    }

    /// Whether the key may call a route of this name.
    pub(crate) fn may_call(&self, route: &str) -> bool {
        is_allowed(self.known.principal.allowed_routes.as_deref(), route)
    }
}

/// Whether a route is among those that a key may call; `None` are all.
fn is_allowed(allowed: Option<&[String]>, route: &str) -> bool {
    allowed.is_none_or(|allowed| allowed.iter().any(|name| name == route))
}

/// Lets calls pass whose key is good, for the scope where one is needed.
pub(crate) async fn authenticate(
    State((edge, scope)): State<(Shared, Option<Scope>)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(peer)| peer.ip());
    let caller = identify(&edge, request.headers(), peer, scope).await?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

async fn identify(edge: &Shared, headers: &HeaderMap, peer: IpAddr, scope: Option<Scope>) -> Result<Caller, EdgeError> {
    let text = key_text(headers).ok_or(EdgeError::NoKey)?;
    // The checksum is in the key: a mistyped one costs no question to the database.
    let key = ApiKey::parse(text).map_err(|_| EdgeError::BadKey)?;
    if key.kind() == KeyKind::Management {
        return Err(EdgeError::BadKey);
    }
    let hash = key.hash();
    let known = match edge.principals.recall(&hash) {
        Recalled::Known(known) => known,
        Recalled::Unknown => return Err(EdgeError::BadKey),
        Recalled::Nothing => {
            let client = edge.trusted_proxies.client(peer, forwarded_for(headers));
            look_up(edge, hash, client).await?
        }
    };
    check_state(&known)?;
    if let Some(scope) = scope.filter(|scope| !has_scope(known.principal.kind, &known.principal.scopes, *scope)) {
        return Err(EdgeError::Scope(scope));
    }
    let project = choose_project(&known, asked_project(headers))?;
    let live = edge.live.enter(&known, project, scope);
    if !edge.principals.holds(&hash, &known) {
        // It was changed between the look at it and now, when nobody could know of this call.
        edge.live.key_changed(known.principal.key);
    }
    Ok(Caller { project, known, live })
}

/// Asks the database for a key. Clients that have asked for many that do not exist take turns.
async fn look_up(edge: &Shared, hash: KeyHash, client: IpAddr) -> Result<Arc<Known>, EdgeError> {
    let too_many = |retry_after| EdgeError::TooManyUnknownKeys { retry_after };
    let turn = edge.strangers.turn(client, edge.store.acquire_timeout()).await.map_err(|none| match none {
        NoTurn::TooMany(retry_after) => too_many(retry_after),
        NoTurn::Slow => EdgeError::Unavailable(None),
    })?;
    // Another call may have asked for the same one meanwhile.
    let found = match edge.principals.recall(&hash) {
        Recalled::Known(known) => Ok(Some(known)),
        Recalled::Unknown => {
            turn.forgiven();
            return Err(EdgeError::BadKey);
        }
        Recalled::Nothing => edge.store.in_time(edge.principals.read(&edge.store, hash)).await,
    };
    match found {
        Ok(None) => Err(turn.missed(Instant::now()).map_or_else(too_many, |()| EdgeError::BadKey)),
        Ok(Some(known)) => {
            turn.forgiven();
            Ok(known)
        }
        Err(error) => {
            turn.forgiven();
            Err(error.into())
        }
    }
}

fn check_state(known: &Known) -> Result<(), EdgeError> {
    let principal = &known.principal;
    let state = if principal.revoked {
        KeyState::Revoked
    } else if principal.expired {
        KeyState::Expired
    } else if principal.owner.is_some_and(|owner| !owner.active) {
        KeyState::OwnerInactive
    } else {
        return Ok(());
    };
    Err(EdgeError::KeyState(state))
}

/// A project's own key is for all that a project can do; a person's has the scopes it was given.
fn has_scope(kind: KeyKind, scopes: &[Scope], scope: Scope) -> bool {
    match kind {
        KeyKind::Project => true,
        KeyKind::Gateway => scopes.contains(&scope),
        KeyKind::Management => false,
    }
}

/// The project that was asked for, else the key's default, else its only one.
fn choose_project(known: &Known, asked: Option<&str>) -> Result<ProjectId, EdgeError> {
    if known.grants.is_empty() {
        return Err(EdgeError::ProjectNotGranted);
    }
    if let Some(asked) = asked {
        let by_name = known.grants.iter().find(|(_, name)| name == asked);
        let by_id = || known.grants.iter().find(|(id, _)| asked.parse() == Ok(id.0));
        return by_name.or_else(by_id).map(|(id, _)| *id).ok_or(EdgeError::ProjectNotGranted);
    }
    let default = known.principal.default_project;
    if let Some(default) = default.filter(|default| known.grants.iter().any(|(id, _)| id == default)) {
        return Ok(default);
    }
    match known.grants.as_slice() {
        [(only, _)] => Ok(*only),
        several => {
            // As the request's header takes them: by name, or by id where no header carries the name everywhere.
            let listed = |(id, name): &(ProjectId, String)| {
                if header_text::is_plain(name) { name.clone() } else { id.to_string() }
            };
            Err(EdgeError::ProjectRequired { projects: several.iter().map(listed).collect() })
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{Role, UserId};
    use store::principals::{Owner, Principal};

    use super::*;

    fn known(grants: &[(i64, &str)], default: Option<i64>) -> Known {
        Known {
            principal: Principal {
                key: ApiKeyId(1),
                kind: KeyKind::Gateway,
                name: "k".to_owned(),
                owner: Some(Owner { user: UserId(1), role: Role::Viewer, active: true }),
                project: None,
                default_project: default.map(ProjectId),
                scopes: vec![Scope::Chat],
                allowed_routes: None,
                revoked: false,
                expired: false,
                expires_in_seconds: None,
                granted: grants.iter().map(|(id, _)| ProjectId(*id)).collect(),
                has_limits: false,
                has_cost_budget: false,
            },
            grants: grants.iter().map(|(id, name)| (ProjectId(*id), (*name).to_owned())).collect(),
            ends: None,
        }
    }

    fn chosen(known: &Known, asked: Option<&str>) -> Result<i64, String> {
        choose_project(known, asked).map(|id| id.0).map_err(|error| error.face().code.unwrap_or_default().into_owned())
    }

    #[test]
    fn the_project_is_the_one_asked_for_then_the_default_then_the_only_one() {
        let two = known(&[(7, "seven"), (8, "7")], Some(8));
        assert_eq!(chosen(&two, Some("seven")), Ok(7));
        assert_eq!(chosen(&two, Some("7")), Ok(8), "a name wins over an id");
        assert_eq!(chosen(&two, Some("8")), Ok(8));
        assert_eq!(chosen(&two, None), Ok(8));
        assert_eq!(chosen(&known(&[(7, "seven")], None), None), Ok(7));
    }

    #[test]
    fn what_is_not_granted_and_what_does_not_exist_look_the_same() {
        let two = known(&[(7, "seven"), (8, "eight")], Some(9));
        assert_eq!(chosen(&two, Some("nine")), Err("project_not_granted".to_owned()));
        assert_eq!(chosen(&two, Some("")), Err("project_not_granted".to_owned()));
        assert_eq!(chosen(&two, None), Err("project_required".to_owned()), "a default that is not granted is none");
        assert_eq!(chosen(&known(&[], None), None), Err("project_not_granted".to_owned()));
    }

    #[test]
    fn a_revoked_key_is_told_so_before_anything_else() {
        let mut key = known(&[(7, "seven")], None);
        key.principal.expired = true;
        key.principal.revoked = true;
        assert!(matches!(check_state(&key), Err(EdgeError::KeyState(KeyState::Revoked))));
        key.principal.revoked = false;
        assert!(matches!(check_state(&key), Err(EdgeError::KeyState(KeyState::Expired))));
    }
}
