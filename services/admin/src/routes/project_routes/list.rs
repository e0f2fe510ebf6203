//! `GET /projects/{id}/routes`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::ProjectId;
use serde::Serialize;

use super::View;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::path::Id;
use crate::routes::projects;

#[derive(Serialize)]
pub(crate) struct Routes {
    routes: Vec<View>,
}

/// The routes of a project, by name.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(project): Id<ProjectId>,
    caller: Caller,
) -> Result<Json<Routes>, ApiError> {
    projects::read(&app, caller.reach(), project).await?;
    let routes = app.store.list_routes(caller.reach(), project, None).await?;
    Ok(Json(Routes { routes: routes.into_iter().map(View::from).collect() }))
}
