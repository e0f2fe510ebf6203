//! `DELETE /documents/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::DocumentId;
use http::StatusCode;
use store::{Store, StoreError};

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
    if let Err(error) = remove(&app.store, id).await {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, document = id.0, "rows of a deleted document are left to housekeeping");
    }
    app.deleted.notify_one();
    Ok(StatusCode::NO_CONTENT)
}

/// Small documents, which most are, have no rows any more when the answer is sent; housekeeping removes the rest.
async fn remove(store: &Store, id: DocumentId) -> Result<(), StoreError> {
    if store.delete_old_versions(id).await? {
        return Ok(());
    }
    store.remove_document(id).await
}
