//! `GET /rag-stores`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::View;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;

#[derive(Serialize)]
pub(crate) struct RagStores {
    rag_stores: Vec<View>,
}

/// The stores of one's projects, and those granted to them.
pub(crate) async fn handle(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<RagStores>, ApiError> {
    let stores = app.store.list_document_stores(caller.reach(), None).await?;
    Ok(Json(RagStores { rag_stores: stores.into_iter().map(View::from).collect() }))
}
