//! `POST /login`

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use domain::Secret;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;
use store::logins::LoginAttempt;

use super::UserView;
use crate::app::App;
use crate::auth::{ClientAddress, Deed};
use crate::body::Json;
use crate::error::ApiError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    username: String,
    password: String,
    /// Whether the answer is to have the token, for clients without cookies.
    #[serde(default)]
    bearer: bool,
}

/// Signs somebody in. Whatever is wrong, the name or the password, the answer is the same and takes as long.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    ClientAddress(address): ClientAddress,
    deed: Deed,
    headers: HeaderMap,
    Json(login): Json<Login>,
) -> Result<Response, ApiError> {
    let (username, password) = (login.username.trim().to_owned(), Secret::new(login.password));
    if !(1..=64).contains(&username.len()) || !(1..=1024).contains(&password.expose().len()) {
        return Err(ApiError::invalid("expected a username of 1 to 64 bytes and a password of 1 to 1024 bytes"));
    }
    let attempt = match app.store.begin_login(&username, &address, &app.login_limits).await? {
        LoginAttempt::Allowed { id } => id,
        LoginAttempt::Throttled { retry_after, locked } => return Err(ApiError::Throttled { retry_after, locked }),
    };
    let found = app.store.find_user_to_sign_in(&username).await?.filter(|(user, _)| user.active);
    let (user, hash) = found.map_or((None, None), |(user, hash)| (Some(user), hash));
    let fits = app.passwords.verify(hash, password).await?;
    let Some(user) = user.filter(|_| fits) else {
        let entry = deed.by(&username).with(json!({ "success": false }));
        app.store.record_audit("user", None, &entry).await?;
        return Err(ApiError::WrongPassword);
    };
    app.store.login_succeeded(attempt).await?;
    let mut entry = deed.by(&user.username).with(json!({ "success": true }));
    entry.actor.user = Some(user.id);
    let user = UserView { id: user.id, username: user.username, role: user.role };
    super::begin(&app, user, login.bearer, StatusCode::OK, &headers, &entry).await
}
