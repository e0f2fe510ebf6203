//! `POST /setup`

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use domain::{Role, Secret};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use crate::app::App;
use crate::auth::{Deed, policy};
use crate::body::Json;
use crate::error::ApiError;
use crate::routes::session::{self, UserView};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    username: String,
    password: String,
    /// Whether the answer is to have the session's token.
    #[serde(default)]
    bearer: bool,
}

/// Makes the first administrator and signs them in. Of calls at once, at whatever replica, exactly one does.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    deed: Deed,
    headers: HeaderMap,
    Json(setup): Json<Setup>,
) -> Result<Response, ApiError> {
    // Asked first, so that nobody makes a finished installation hash passwords.
    if app.store.has_users().await? {
        return Err(ApiError::SetupDone);
    }
    let (username, password) = (setup.username, Secret::new(setup.password));
    let problem = policy::problem_with_name(&username).or_else(|| policy::problem_with_password(&password));
    if let Some(problem) = problem {
        return Err(ApiError::invalid(problem));
    }
    let hash = app.passwords.hash(password).await?;
    let made = app.store.create_first_user(&username, &hash, &deed.by(&username)).await?;
    let id = made.ok_or(ApiError::SetupDone)?;
    let mut entry = deed.by(&username);
    (entry.action, entry.actor.user) = ("login", Some(id));
    let user = UserView { id, username, role: Role::Admin };
    session::begin(&app, user, setup.bearer, StatusCode::CREATED, &headers, &entry).await
}
