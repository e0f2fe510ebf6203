//! `POST /projects/{id}/routes`

use std::sync::Arc;

use axum::extract::State;
use domain::ProjectId;
use http::StatusCode;
use serde_json::json;
use store::routes::RouteSettings;

use super::{Changes, View, check_kinds, read, unknown_connection};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;
use crate::path::Id;

/// Makes a route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(project): Id<ProjectId>,
    caller: Caller,
    deed: Deed,
    Json(new): Json<Changes>,
) -> Result<(StatusCode, axum::Json<View>), ApiError> {
    let defaults = RouteSettings {
        name: String::new(),
        max_output: None,
        min_output: 64,
        context_tokens: 3000,
        context_placement: None,
        allowed_features: Vec::new(),
        replay_timeouts: false,
        groups: Vec::new(),
    };
    let settings = new.apply(defaults)?;
    if settings.groups.is_empty() {
        return Err(ApiError::invalid("groups: a route needs at least one connection"));
    }
    check_kinds(&app, &settings.groups).await?;
    let entry = deed.entry(json!({ "project_id": project, "name": settings.name }));
    let made = app.store.create_route(caller.reach(), project, &settings, &entry).await.map_err(unknown_connection)?;
    Ok((StatusCode::CREATED, axum::Json(read(&app, caller.reach(), project, made).await?.into())))
}
