//! `GET /v1/models/{id}`.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::Uri;

use super::Model;
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::state::Shared;

/// Shows one model, if this key may call it. A name that only the default route would answer is not a model.
pub(crate) async fn get(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let missing = |model: &str| EdgeError::ModelNotFound { model: model.chars().take(200).collect() };
    // What is no text names nothing, and is shown as it was sent.
    let Path(id) = id.map_err(|_| missing(uri.path().trim_start_matches("/v1/models/")))?;
    let project = edge.catalog.project(caller.project).await?;
    let found = project.routes_for(&caller).find(|route| route.name == id);
    let route = found.ok_or_else(|| missing(&id))?;
    Ok(Json(Model::of(route)).into_response())
}
