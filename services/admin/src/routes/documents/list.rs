//! `GET /rag-stores/{id}/documents`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::{DocumentId, DocumentStatus, StoreId};
use serde::{Deserialize, Serialize};

use super::View;
use crate::app::App;
use crate::auth::Caller;
use crate::body::Params;
use crate::error::ApiError;
use crate::path::Id;
use crate::routes::checks;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    /// Documents on a page, 1 to 200.
    #[serde(default = "default_limit")]
    limit: i64,
    /// The `next_cursor` of the page before.
    cursor: Option<DocumentId>,
    /// Only those in this state.
    status: Option<DocumentStatus>,
}

fn default_limit() -> i64 {
    50
}

#[derive(Serialize)]
pub(crate) struct Documents {
    documents: Vec<View>,
    /// For the next page; `null` on the last.
    next_cursor: Option<i64>,
}

/// The documents of a store, newest first.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(store): Id<StoreId>,
    caller: Caller,
    Params(page): Params<Page>,
) -> Result<Json<Documents>, ApiError> {
    let limit = checks::within("limit", page.limit, 1, 200)?;
    if !app.store.may_read_store(caller.reach(), store).await? {
        return Err(ApiError::NotFound);
    }
    // One more than asked for says whether there is a next page.
    let status = page.status.map(DocumentStatus::as_str);
    let mut documents = app.store.list_documents(store, page.cursor, status, limit + 1).await?;
    let more = i64::try_from(documents.len()).is_ok_and(|found| found > limit);
    documents.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next_cursor = documents.last().map(|last| last.id).filter(|_| more);
    Ok(Json(Documents { documents: documents.into_iter().map(View::from).collect(), next_cursor }))
}
