//! `GET /v1/models/{id}`.

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderMap, Uri};

use super::Model;
use crate::auth::Caller;
use crate::error::{EdgeError, Failure, shown};
use crate::json;
use crate::state::Shared;

/// Shows one model, if this key may call it. A name that only the default route would answer is not a model.
pub(crate) async fn get(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let missing = |model: &str| EdgeError::ModelNotFound { model: shown(model) };
    // What is no text names nothing, and is shown as it was sent.
    let Path(id) = id.map_err(|_| missing(uri.path().split_once("/models/").map_or("", |(_, sent)| sent)))?;
    let project = edge.catalog.project(caller.project).await?;
    let found = project.routes_for(&caller).find(|route| route.name == id);
    let route = found.ok_or_else(|| missing(&id))?;
    Ok(json::of(&Model::of(route), HeaderMap::new())?)
}
