//! `POST /rag-stores/{id}/reprocess`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::{DocumentId, StoreId};
use http::StatusCode;
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::error::ApiError;
use crate::path::Id;

/// Documents that one statement has read again.
const BATCH: i64 = 1_000;

#[derive(Serialize)]
pub(crate) struct Reprocessing {
    /// Documents of the store: all of them are read again, those that were waiting for that anyway included.
    documents: i64,
}

/// Has all documents of a store read again, after its uploads. What can be found of each now stays until its new version
/// is complete. Asked for twice it does nothing more for those that still wait.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<StoreId>,
    caller: Caller,
    deed: Deed,
) -> Result<(StatusCode, Json<Reprocessing>), ApiError> {
    if !app.store.may_write_store(caller.reach(), id).await? {
        return Err(ApiError::NotFound);
    }
    let owned = Arc::clone(&app);
    // In a task of its own: a client that goes away must not leave half of the store as it was.
    let all = app.tasks.spawn(async move {
        let (mut documents, mut after) = (0, DocumentId(0));
        loop {
            let (looked_at, last) = owned.store.reprocess_documents(id, after, BATCH).await?;
            documents += looked_at;
            match last {
                Some(last) if looked_at == BATCH => after = last,
                Some(_) | None => break,
            }
        }
        let entry = deed.entry(json!({ "documents": documents }));
        owned.store.record_audit("store", Some(id.0), &entry).await?;
        Ok::<_, ApiError>(documents)
    });
    let documents = all.await.map_err(ApiError::internal)??;
    Ok((StatusCode::ACCEPTED, Json(Reprocessing { documents })))
}
