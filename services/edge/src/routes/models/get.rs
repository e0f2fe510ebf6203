//! `GET /v1/models/{id}`.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::Model;
use crate::auth::Caller;
use crate::error::{EdgeError, Failure};
use crate::state::Shared;

/// Shows one model, if this key may call it. A name that only the default route would answer is not a model.
pub(crate) async fn get(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let project = edge.catalog.project(caller.project).await?;
    let found = project.routes_for(&caller).find(|route| route.name == id);
    let route = found.ok_or_else(|| EdgeError::ModelNotFound { model: id.chars().take(200).collect() })?;
    Ok(Json(Model::of(route)).into_response())
}
