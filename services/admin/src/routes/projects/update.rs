//! `PUT` and `PATCH /projects/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::{ProjectId, RouteId, StoreId};
use serde_json::json;
use store::projects::ProjectSettings;

use super::{Changes, View, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;
use crate::path::Id;

/// Changes a project. Limits hold from the next admission on, at every edge.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<ProjectId>,
    caller: Caller,
    deed: Deed,
    Json(changes): Json<Changes>,
) -> Result<axum::Json<View>, ApiError> {
    let now = read(&app, caller.reach(), id).await?;
    let before = now.settings.clone();
    let settings = changes.apply(&app, now.settings).await?;
    check_references(&app, &caller, id, &before, &settings).await?;
    let entry = deed.entry(json!({
        "name": settings.name,
        "limits": { "from": before.limits, "to": settings.limits },
        "retrieval": { "from": before.retrieval, "to": settings.retrieval },
    }));
    app.store.update_project(caller.reach(), id, now.revision, &settings, &entry).await?;
    Ok(axum::Json(read(&app, caller.reach(), id).await?.into()))
}

/// Says which reference is wrong; that it is right when it is written is up to the statement.
async fn check_references(
    app: &App,
    caller: &Caller,
    id: ProjectId,
    before: &ProjectSettings,
    after: &ProjectSettings,
) -> Result<(), ApiError> {
    let changed = |route: &RouteId| before.default_route != Some(*route);
    if let Some(route) = after.default_route.filter(changed)
        && app.store.list_routes(caller.reach(), id, Some(route)).await?.is_empty()
    {
        return Err(ApiError::invalid("default_route_id: the project has no such route"));
    }
    let changed = |store: &StoreId| before.store != Some(*store);
    if let Some(store) = after.store.filter(changed)
        && !app.store.may_search(id, store).await?
    {
        return Err(ApiError::invalid("store_id: the project has no such store, and none was granted to it"));
    }
    Ok(())
}
