//! `POST /projects`

use std::sync::Arc;

use axum::extract::State;
use domain::{ApiKey, KeyKind};
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use store::projects::ProjectSettings;

use super::{Changes, View, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;

#[derive(Serialize)]
pub(crate) struct Created {
    project: View,
    /// Shown this once.
    api_key: String,
}

/// Makes a project with its key. Who makes it is its first member.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    caller: Caller,
    deed: Deed,
    Json(new): Json<Changes>,
) -> Result<(StatusCode, axum::Json<Created>), ApiError> {
    let settings = new.apply(&app, ProjectSettings::named("")).await?;
    if settings.default_route.is_some() || settings.store.is_some() {
        return Err(ApiError::invalid(
            "default_route_id and store_id: a new project has neither routes nor stores; set them when it has",
        ));
    }
    let key = ApiKey::generate(KeyKind::Project);
    let entry =
        deed.entry(json!({ "name": settings.name, "limits": settings.limits, "retrieval": settings.retrieval }));
    let id = app.store.create_project(&settings, &key, Some(caller.user.id), &entry).await?;
    let project = read(&app, caller.reach(), id).await?.into();
    Ok((StatusCode::CREATED, axum::Json(Created { project, api_key: key.secret().expose().to_owned() })))
}
