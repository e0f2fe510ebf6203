//! `GET /models`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::View;
use crate::app::App;
use crate::error::ApiError;

#[derive(Serialize)]
pub(crate) struct Models {
    models: Vec<View>,
}

/// All connections, by name.
pub(crate) async fn handle(State(app): State<Arc<App>>) -> Result<Json<Models>, ApiError> {
    let connections = app.store.list_connections().await?;
    Ok(Json(Models { models: connections.into_iter().map(|connection| View::of(connection, &app.vault)).collect() }))
}
