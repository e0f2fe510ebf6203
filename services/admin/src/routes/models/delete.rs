//! `DELETE /models/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::ConnectionId;
use http::StatusCode;

use crate::app::App;
use crate::auth::Deed;
use crate::error::ApiError;
use crate::path::Id;

/// Deletes a connection that no route and no store uses.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<ConnectionId>,
    deed: Deed,
) -> Result<StatusCode, ApiError> {
    app.store.delete_connection(id, &deed.plain()).await?;
    Ok(StatusCode::NO_CONTENT)
}
