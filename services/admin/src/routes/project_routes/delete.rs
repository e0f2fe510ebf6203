//! `DELETE /projects/{id}/routes/{route_id}`

use std::sync::Arc;

use axum::extract::State;
use domain::{ProjectId, RouteId};
use http::StatusCode;
use serde_json::json;

use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Ids;

/// Deletes a route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Ids(project, id): Ids<ProjectId, RouteId>,
    caller: Caller,
    deed: Deed,
) -> Result<StatusCode, ApiError> {
    let entry = deed.entry(json!({ "project_id": project }));
    app.store.delete_route(caller.reach(), project, id, &entry).await?;
    Ok(StatusCode::NO_CONTENT)
}
