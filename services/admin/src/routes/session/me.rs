//! `GET /me`

use axum::Json;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use super::UserView;
use crate::auth::{Caller, Form};
use crate::error::ApiError;

/// Who is signed in, and how.
pub(crate) async fn handle(caller: Caller) -> Result<Json<Value>, ApiError> {
    let ends = caller.expires_at.format(&Rfc3339).map_err(ApiError::internal)?;
    Ok(Json(json!({
        "user": UserView { id: caller.user.id, username: caller.user.username, role: caller.user.role },
        "session_kind": "session",
        "session_bearer": caller.form == Form::Bearer,
        "session_expires_at": ends,
    })))
}
