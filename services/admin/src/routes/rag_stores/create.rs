//! `POST /rag-stores`

use std::sync::Arc;

use axum::extract::State;
use domain::SearchTuning;
use http::StatusCode;
use serde_json::json;
use store::document_stores::{NewDocumentStore, StoreSettings};

use super::probe::probe_width;
use super::{Changes, View, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;

/// Makes a store. The model that will embed its documents is asked once, for the width of its vectors.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    caller: Caller,
    deed: Deed,
    Json(new): Json<Changes>,
) -> Result<(StatusCode, axum::Json<View>), ApiError> {
    let defaults = StoreSettings {
        name: String::new(),
        chunk_tokens: 400,
        chunk_overlap: 60,
        contextual: true,
        language: None,
        max_running: 0,
        max_documents: 0,
        max_bytes: 0,
        max_age_days: 0,
        search: SearchTuning::default(),
    };
    let project = new.project_id.ok_or_else(|| ApiError::invalid("project_id: the project that owns the store"))?;
    let connection = new
        .embedding_connection_id
        .ok_or_else(|| ApiError::invalid("embedding_connection_id: the connection whose model embeds its documents"))?;
    let settings = new.apply(defaults)?;
    // Before the provider is asked: somebody who may not have the store must not spend money on it.
    if app.store.find_project(caller.reach(), project).await?.is_none() {
        return Err(ApiError::invalid("project_id: there is no such project"));
    }
    let connection = app
        .store
        .find_connection(connection)
        .await?
        .ok_or_else(|| ApiError::invalid("embedding_connection_id: there is no such connection"))?;
    let width = probe_width(&app, &connection).await?;
    app.store.ensure_vector_table(width).await?;
    let entry = deed.entry(json!({ "project_id": project, "name": settings.name, "dimensions": width }));
    let store = NewDocumentStore {
        project,
        connection: connection.id,
        base_url: connection.settings.base_url,
        model_name: connection.settings.model_name,
        width,
        settings,
    };
    let id = app.store.create_document_store(caller.reach(), &store, &entry).await?;
    Ok((StatusCode::CREATED, axum::Json(read(&app, caller.reach(), id).await?.into())))
}
