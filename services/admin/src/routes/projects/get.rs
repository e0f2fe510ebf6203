//! `GET /projects/{id}`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::ProjectId;

use super::{View, read};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::path::Id;

/// One project.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<ProjectId>,
    caller: Caller,
) -> Result<Json<View>, ApiError> {
    Ok(Json(read(&app, caller.reach(), id).await?.into()))
}
