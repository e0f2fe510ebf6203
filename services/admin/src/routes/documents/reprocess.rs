//! `POST /documents/{id}/reprocess`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::DocumentId;
use http::StatusCode;

use super::{View, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Id;

/// Has a document read again. What can be found of it now stays until the new version is complete.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<DocumentId>,
    caller: Caller,
    deed: Deed,
) -> Result<(StatusCode, Json<View>), ApiError> {
    app.store.reprocess_document(caller.reach(), id, &deed.plain()).await?;
    Ok((StatusCode::ACCEPTED, Json(read(&app, caller.reach(), id).await?)))
}
