//! `GET /setup`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use vault::Source;

use crate::app::App;
use crate::error::ApiError;

/// Whether there is nobody yet, and then also what the person who sets up wants to check. Afterwards it says no more.
pub(crate) async fn handle(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if app.store.has_users().await? {
        return Ok(Json(json!({ "needs_setup": false })));
    }
    let source = match app.vault.source() {
        Source::Env => "env",
        Source::File(_) => "file",
        Source::Generated(_) => "generated",
    };
    let migrated = app.store.applied_version().await?;
    Ok(Json(json!({ "needs_setup": true, "migrations_version": migrated, "secret_key_source": source })))
}
