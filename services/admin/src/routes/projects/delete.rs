//! `DELETE /projects/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::ProjectId;
use http::StatusCode;
use store::projects::ProjectDeletion;

use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Id;

/// Deletes a project that was never called and owns no store.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<ProjectId>,
    caller: Caller,
    deed: Deed,
) -> Result<StatusCode, ApiError> {
    match app.store.delete_project(caller.reach(), id, &deed.plain()).await? {
        ProjectDeletion::Deleted => Ok(StatusCode::NO_CONTENT),
        ProjectDeletion::HasUsage => Err(ApiError::HasUsage),
    }
}
