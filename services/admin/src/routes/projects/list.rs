//! `GET /projects`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::View;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;

#[derive(Serialize)]
pub(crate) struct Projects {
    projects: Vec<View>,
}

/// One's projects, by name.
pub(crate) async fn handle(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<Projects>, ApiError> {
    let projects = app.store.list_projects(caller.reach()).await?;
    Ok(Json(Projects { projects: projects.into_iter().map(View::from).collect() }))
}
