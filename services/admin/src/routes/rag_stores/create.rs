//! `POST /rag-stores`

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use providers::{Attempts, validate_base_url};
use serde_json::json;
use store::connections::ModelConnection;
use store::document_stores::{NewDocumentStore, StoreSettings};
use tokio::time::Instant;

use super::{Changes, View, read};
use crate::app::{App, PROVIDER_PATIENCE};
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;

/// pgvector indexes no more, whatever the type.
const MAX_WIDTH: usize = 4000;

/// What the model is asked to embed to see how wide its vectors are.
const PROBE: &str = "How many dimensions has this vector?";

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

async fn probe_width(app: &App, stored: &ModelConnection) -> Result<i32, ApiError> {
    let target = stored
        .target()
        .ok_or_else(|| ApiError::invalid("embedding_connection_id: this version does not know its provider type"))?;
    // The rules may have become stricter since it was stored.
    validate_base_url(&target.base_url, target.provider, &app.addresses)
        .map_err(|error| ApiError::invalid(format!("embedding_connection_id: {error}")))?;
    let credential = target.open_credential(&app.vault).map_err(|_| ApiError::CredentialUnreadable)?;
    let connection = retrieval::connection(&target, credential).map_err(ApiError::internal)?;
    let mut attempts = Attempts::until(Instant::now() + PROVIDER_PATIENCE);
    let answer = app.providers.embed(&connection, &[PROBE.to_owned()], None, &mut attempts).await?;
    let width = answer.vectors.first().map_or(0, Vec::len);
    match i32::try_from(width) {
        Ok(found @ 1..) if width <= MAX_WIDTH => Ok(found),
        _ => Err(ApiError::invalid(format!(
            "embedding_connection_id: its model answers with {width} dimensions; a store has 1 to {MAX_WIDTH}"
        ))),
    }
}
