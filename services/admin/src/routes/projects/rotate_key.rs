//! `POST /projects/{id}/rotate-key`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::{ApiKey, KeyKind, ProjectId};
use serde::Serialize;

use super::{View, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Id;

#[derive(Serialize)]
pub(crate) struct Rotated {
    project: View,
    /// Shown this once.
    api_key: String,
}

/// Gives a project a new key. The old one ends at once.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<ProjectId>,
    caller: Caller,
    deed: Deed,
) -> Result<Json<Rotated>, ApiError> {
    let key = ApiKey::generate(KeyKind::Project);
    app.store.rotate_project_key(caller.reach(), id, &key, &deed.plain()).await?;
    let project = read(&app, caller.reach(), id).await?.into();
    Ok(Json(Rotated { project, api_key: key.secret().expose().to_owned() }))
}
