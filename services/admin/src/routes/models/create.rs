//! `POST /models`

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use store::connections::ConnectionSettings;

use super::{View, base_url, credential, output_field, provider, read};
use crate::app::App;
use crate::auth::Deed;
use crate::body::Json;
use crate::error::ApiError;
use crate::routes::checks;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewModel {
    name: String,
    provider_type: String,
    model_name: String,
    #[serde(default)]
    base_url: String,
    api_key: Option<String>,
    output_field: Option<String>,
}

/// Makes a connection. Its credential is sealed and never shown again.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    deed: Deed,
    Json(new): Json<NewModel>,
) -> Result<(StatusCode, axum::Json<View>), ApiError> {
    let provider = provider(&new.provider_type)?;
    let settings = ConnectionSettings {
        name: checks::name(&new.name)?,
        provider_type: provider.as_str().to_owned(),
        base_url: base_url(&app, &new.base_url, provider)?,
        model_name: checks::model_name("model_name", &new.model_name)?,
        output_field: output_field(new.output_field.as_deref())?,
    };
    let credential = credential(new.api_key)?;
    let entry = deed.entry(json!({ "name": settings.name, "base_url": settings.base_url }));
    let id = app.store.create_connection(&settings, credential.as_ref(), &app.vault, &entry).await?;
    Ok((StatusCode::CREATED, axum::Json(View::of(read(&app, id).await?, &app.vault))))
}
