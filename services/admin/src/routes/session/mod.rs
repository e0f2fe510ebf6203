//! Signing in and out.

pub(crate) mod login;
pub(crate) mod logout;
pub(crate) mod me;

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use domain::{KeyHash, Role, Secret, UserId};
use http::header::SET_COOKIE;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use store::audit::AuditEntry;
use time::OffsetDateTime;

use crate::app::App;
use crate::auth::tokens;
use crate::error::ApiError;

/// A person, as the API shows them.
#[derive(Serialize)]
pub(super) struct UserView {
    pub(super) id: UserId,
    pub(super) username: String,
    pub(super) role: Role,
}

#[derive(Serialize)]
struct Begun {
    user: UserView,
    #[serde(with = "time::serde::rfc3339")]
    session_expires_at: OffsetDateTime,
    /// Only for clients that asked for it: a browser has its cookie and no use for the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// Begins a session and answers with it.
pub(super) async fn begin(
    app: &App,
    user: UserView,
    bearer: bool,
    status: StatusCode,
    headers: &HeaderMap,
    entry: &AuditEntry,
) -> Result<Response, ApiError> {
    let (token, lasts): (Secret, Duration) = (tokens::generate(), app.session_ttl);
    let expires_at = app.store.create_session(user.id, &KeyHash::of(token.expose()), lasts, entry).await?;
    let shown = bearer.then(|| token.expose().to_owned());
    let mut response = (status, Json(Begun { user, session_expires_at: expires_at, token: shown })).into_response();
    if let Some(cookie) = tokens::cookie(&token, lasts, headers) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(response)
}
