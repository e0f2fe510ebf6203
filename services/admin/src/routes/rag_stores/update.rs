//! `PUT` and `PATCH /rag-stores/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::StoreId;
use serde::Serialize;
use serde_json::json;

use super::{Changes, View, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;
use crate::path::Id;

#[derive(Serialize)]
pub(crate) struct Updated {
    #[serde(flatten)]
    store: View,
    /// Whether documents that are there were cut by other settings than new ones will be.
    reprocess_recommended: bool,
}

/// Changes a store's settings.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<StoreId>,
    caller: Caller,
    deed: Deed,
    Json(changes): Json<Changes>,
) -> Result<axum::Json<Updated>, ApiError> {
    let now = read(&app, caller.reach(), id).await?;
    if changes.project_id.is_some_and(|project| project != now.project) {
        return Err(ApiError::invalid("project_id: the project of a store cannot be changed"));
    }
    if changes.embedding_connection_id.is_some_and(|connection| connection != now.connection) {
        return Err(ApiError::invalid("embedding_connection_id: the connection of a store cannot be changed"));
    }
    let settings = changes.apply(now.settings.clone())?;
    let cuts_differently = (settings.chunk_tokens, settings.chunk_overlap, settings.contextual)
        != (now.settings.chunk_tokens, now.settings.chunk_overlap, now.settings.contextual);
    let entry = deed.entry(json!({ "name": settings.name }));
    app.store.update_document_store(caller.reach(), id, now.revision, &settings, &entry).await?;
    let store = View::from(read(&app, caller.reach(), id).await?);
    Ok(axum::Json(Updated { reprocess_recommended: cuts_differently && store.chunk_count > 0, store }))
}
