//! `GET /documents/{id}`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::DocumentId;

use super::{View, read};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::path::Id;

/// One document: its state, how far it is, why it failed, or where it waits.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<DocumentId>,
    caller: Caller,
) -> Result<Json<View>, ApiError> {
    Ok(Json(read(&app, caller.reach(), id).await?))
}
