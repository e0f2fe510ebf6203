//! `PUT` and `PATCH /projects/{id}/routes/{route_id}`

use std::sync::Arc;

use axum::extract::State;
use domain::{ProjectId, RouteId};
use serde_json::json;

use super::{Changes, View, check_kinds, read, unknown_connection};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;
use crate::path::Ids;

/// Changes a route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Ids(project, id): Ids<ProjectId, RouteId>,
    caller: Caller,
    deed: Deed,
    Json(changes): Json<Changes>,
) -> Result<axum::Json<View>, ApiError> {
    let now = read(&app, caller.reach(), project, id).await?;
    let before = now.settings.groups.clone();
    let settings = changes.apply(now.settings)?;
    if settings.groups != before {
        check_kinds(&app, &settings.groups).await?;
    }
    let entry = deed.entry(json!({ "project_id": project, "name": settings.name }));
    app.store.update_route(caller.reach(), project, id, &settings, &entry).await.map_err(unknown_connection)?;
    Ok(axum::Json(read(&app, caller.reach(), project, id).await?.into()))
}
