//! The caller, as handlers know them.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts};
use domain::{KeyHash, Role};
use http::request::Parts;
use serde_json::{Value, json};
use store::Reach;
use store::audit::{Actor, AuditEntry};
use store::users::User;
use time::OffsetDateTime;

use crate::error::ApiError;

/// How a caller proved who they are. A management key is a third form, limited by its scopes as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A session token in the header.
    Bearer,
    /// The session cookie.
    Cookie,
}

/// Somebody who signed in.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Who, with the role they have now.
    pub(crate) user: User,
    /// How they proved it.
    pub(crate) form: Form,
    /// The session.
    pub(crate) session: KeyHash,
    /// When it ends.
    pub(crate) expires_at: OffsetDateTime,
}

impl Caller {
    /// The rows they may see and, where their role lets them write at all, change.
    pub(crate) fn reach(&self) -> Reach {
        match self.user.role {
            Role::Admin => Reach::All,
            Role::Viewer | Role::Editor => Reach::Member(self.user.id),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or(ApiError::Unauthenticated)
    }
}

/// The address a request came from.
#[derive(Clone, Debug)]
pub(crate) struct ClientAddress(pub(crate) String);

impl ClientAddress {
    pub(crate) fn of(parts: &Parts) -> Self {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        Self(peer.map_or_else(|| "unknown".to_owned(), |ConnectInfo(peer)| peer.ip().to_canonical().to_string()))
    }
}

impl<S: Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self::of(parts))
    }
}

/// What a route that writes puts into the audit log: the action that the table names for it, and who does it.
#[derive(Clone, Debug)]
pub(crate) struct Deed(AuditEntry);

impl Deed {
    pub(crate) fn new(action: &'static str, caller: Option<&Caller>, address: ClientAddress) -> Self {
        let actor = Actor {
            user: caller.map(|caller| caller.user.id),
            name: caller.map_or_else(String::new, |caller| caller.user.username.clone()),
            address: Some(address.0),
        };
        Self(AuditEntry::new(actor, action))
    }

    /// The entry with details. No secret, no file name and no content may be among them.
    pub(crate) fn entry(&self, details: Value) -> AuditEntry {
        self.0.clone().with(details)
    }

    /// The entry without details.
    pub(crate) fn plain(&self) -> AuditEntry {
        self.entry(json!({}))
    }

    /// The entry of somebody who is not signed in yet.
    pub(crate) fn by(&self, name: &str) -> AuditEntry {
        let mut entry = self.plain();
        entry.actor.name = name.to_owned();
        entry
    }
}

impl<S: Sync> FromRequestParts<S> for Deed {
    type Rejection = ApiError;

    /// Fails for a route whose row in the table names no action: it must not write.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::internal("the route has no audit action"))
    }
}
