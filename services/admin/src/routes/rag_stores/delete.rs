//! `DELETE /rag-stores/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::StoreId;
use http::StatusCode;

use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Id;

/// Deletes a store with its documents. Workers that are at one of them lose their claims.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<StoreId>,
    caller: Caller,
    deed: Deed,
) -> Result<StatusCode, ApiError> {
    app.store.delete_document_store(caller.reach(), id, &deed.plain()).await?;
    app.deleted.notify_one();
    Ok(StatusCode::NO_CONTENT)
}
