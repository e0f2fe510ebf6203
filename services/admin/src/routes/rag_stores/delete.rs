//! `DELETE /rag-stores/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::StoreId;
use http::StatusCode;
use store::StoreError;

use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Id;

/// Deletes an empty store.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<StoreId>,
    caller: Caller,
    deed: Deed,
) -> Result<StatusCode, ApiError> {
    match app.store.delete_document_store(caller.reach(), id, &deed.plain()).await {
        Err(StoreError::Referenced { .. }) => Err(ApiError::StoreNotEmpty),
        result => Ok(result.map(|()| StatusCode::NO_CONTENT)?),
    }
}
