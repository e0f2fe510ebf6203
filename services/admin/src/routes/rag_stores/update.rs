//! `PUT` and `PATCH /rag-stores/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::StoreId;
use serde::Serialize;
use serde_json::json;
use store::document_stores::StoreSettings;

use super::switch::{Shown, Wish, grant, show, wish};
use super::{Changes, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;
use crate::path::Id;

#[derive(Serialize)]
pub(crate) struct Updated {
    #[serde(flatten)]
    store: Shown,
    /// Whether documents that are there were cut or indexed by other settings than new ones will be.
    reprocess_recommended: bool,
}

/// Changes a store's settings. Another embedding connection is asked for the width of its vectors at once, and takes over
/// when a worker has built them all.
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
    let wanted = changes.embedding_connection_id;
    let settings = changes.apply(now.settings.clone())?;
    let wish = match wanted {
        Some(connection) => wish(&app, &now, connection).await?,
        None => Wish::Keep,
    };
    if settings != now.settings || matches!(wish, Wish::Keep) {
        let entry = deed.entry(json!({ "name": settings.name }));
        app.store.update_document_store(caller.reach(), id, now.revision, &settings, &entry).await?;
    }
    grant(&app, caller.reach(), id, &wish, &deed).await?;
    let differs = how_documents_are_read(&settings) != how_documents_are_read(&now.settings);
    let store = show(&app, caller.reach(), id).await?;
    Ok(axum::Json(Updated { reprocess_recommended: differs && store.store.chunk_count > 0, store }))
}

/// What decides how a document is cut and indexed; everything else is in force at once, for all documents.
fn how_documents_are_read(settings: &StoreSettings) -> (i32, i32, bool, Option<&str>) {
    (settings.chunk_tokens, settings.chunk_overlap, settings.contextual, settings.language.as_deref())
}
