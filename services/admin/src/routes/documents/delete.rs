//! `DELETE /documents/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::DocumentId;
use http::StatusCode;

use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Id;

/// Deletes a document with everything that was made of it. A worker that is at it loses its claim.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<DocumentId>,
    caller: Caller,
    deed: Deed,
) -> Result<StatusCode, ApiError> {
    app.store.delete_document(caller.reach(), id, &deed.plain()).await?;
    Ok(StatusCode::NO_CONTENT)
}
