//! `GET /rag-stores/{id}`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::StoreId;

use super::switch::{Shown, show};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::path::Id;

/// One store, with what it holds.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<StoreId>,
    caller: Caller,
) -> Result<Json<Shown>, ApiError> {
    Ok(Json(show(&app, caller.reach(), id).await?))
}
