//! The check that every route of the table stands behind.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::{KeyHash, KeyKind, Role};
use http::Method;
use http::request::Parts;

use super::caller::{Caller, ClientAddress, Deed, Form};
use super::cross_site::{Site, site};
use super::tokens::{Credential, credential};
use crate::app::App;
use crate::error::ApiError;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Anybody.
    Public,
    /// Whoever signed in and has at least this role.
    Role(Role),
}

/// A row of the table of routes.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Its method.
    pub(crate) method: Method,
    /// Its path below `/admin/api`.
    pub(crate) path: &'static str,
    /// Who may use it.
    pub(crate) floor: Floor,
    /// What it writes into the audit log; `None` for a route that only reads.
    pub(crate) action: Option<&'static str>,
}

/// Lets a request through to its handler, with the caller and the audit action beside it.
pub(crate) async fn authorize(
    State((app, access)): State<(Arc<App>, Arc<Access>)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let caller = match admit(&app, &access, &parts).await {
        Ok(caller) => caller,
        Err(error) => return error.into_response(),
    };
    if let Some(action) = access.action {
        parts.extensions.insert(Deed::new(action, caller.as_ref(), ClientAddress::of(&parts)));
    }
    if let Some(caller) = caller {
        parts.extensions.insert(caller);
    }
    next.run(Request::from_parts(parts, body)).await
}

async fn admit(app: &App, access: &Access, parts: &Parts) -> Result<Option<Caller>, ApiError> {
    let writes = access.method != Method::GET;
    let Floor::Role(floor) = access.floor else {
        // Signing somebody in from another site is an attack as well.
        return if writes && site(parts) == Site::Other { Err(ApiError::CrossSite) } else { Ok(None) };
    };
    let caller = authenticate(app, parts).await?;
    // A browser adds the cookie whoever makes it send the request; nobody but the client adds the header.
    if writes && caller.form == Form::Cookie && site(parts) != Site::Same {
        return Err(ApiError::CrossSite);
    }
    if caller.user.role < floor {
        return Err(ApiError::RoleTooLow);
    }
    Ok(Some(caller))
}

async fn authenticate(app: &App, parts: &Parts) -> Result<Caller, ApiError> {
    let (form, token) = match credential(&parts.headers).ok_or(ApiError::Unauthenticated)? {
        // Where management keys will be looked up, with their scopes and their owner's role.
        Credential::Bearer(token) if token.expose().starts_with(KeyKind::Management.prefix()) => {
            return Err(ApiError::Unauthenticated);
        }
        Credential::Bearer(token) => (Form::Bearer, token),
        Credential::Cookie(token) => (Form::Cookie, token),
    };
    let hash = KeyHash::of(token.expose());
    let session = app.store.find_session(&hash).await?.ok_or(ApiError::Unauthenticated)?;
    Ok(Caller { user: session.user, form, session: hash, expires_at: session.expires_at })
}
