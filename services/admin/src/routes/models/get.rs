//! `GET /models/{id}`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::ConnectionId;

use super::{View, read};
use crate::app::App;
use crate::error::ApiError;
use crate::path::Id;

/// One connection.
pub(crate) async fn handle(State(app): State<Arc<App>>, Id(id): Id<ConnectionId>) -> Result<Json<View>, ApiError> {
    Ok(Json(View::of(read(&app, id).await?, &app.vault)))
}
