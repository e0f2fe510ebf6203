//! `GET /v1/models`.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde::Serialize;

use super::Model;
use crate::auth::Caller;
use crate::error::Failure;
use crate::json;
use crate::state::Shared;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

/// Lists the models that this key may call, by name.
pub(crate) async fn list(
    State(edge): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Failure> {
    let project = edge.catalog.project(caller.project).await?;
    let data = project.routes_for(&caller).map(|route| Model::of(route)).collect();
    Ok(json::of(&List { object: "list", data }, HeaderMap::new())?)
}
