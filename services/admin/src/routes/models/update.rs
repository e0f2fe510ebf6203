//! `PUT` and `PATCH /models/{id}`

use std::sync::Arc;

use axum::extract::State;
use domain::ConnectionId;
use serde::Deserialize;
use serde_json::json;
use store::StoreError;
use store::connections::{ConnectionSettings, CredentialChange};
use url::Url;

use super::{View, base_url, credential, output_field, provider, read};
use crate::app::App;
use crate::auth::Deed;
use crate::body::{Json, nullable};
use crate::error::ApiError;
use crate::path::Id;
use crate::routes::checks;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Changes {
    name: Option<String>,
    provider_type: Option<String>,
    model_name: Option<String>,
    base_url: Option<String>,
    /// An empty one keeps what is there.
    api_key: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    output_field: Option<Option<String>>,
}

/// Changes a connection. Its credential never follows it to another address: without a new one in the same request it is
/// cleared. Its model stays while a document store uses it: the vectors there are that model's.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<ConnectionId>,
    deed: Deed,
    Json(changes): Json<Changes>,
) -> Result<axum::Json<View>, ApiError> {
    let now = read(&app, id).await?;
    let provider = provider(changes.provider_type.as_deref().unwrap_or(&now.settings.provider_type))?;
    let url = match changes.base_url {
        Some(url) => base_url(&app, &url, provider)?,
        None => base_url(&app, &now.settings.base_url, provider)?,
    };
    let settings = ConnectionSettings {
        name: checks::name(changes.name.as_deref().unwrap_or(&now.settings.name))?,
        provider_type: provider.as_str().to_owned(),
        base_url: url,
        model_name: checks::model_name(
            "model_name",
            changes.model_name.as_deref().unwrap_or(&now.settings.model_name),
        )?,
        output_field: match changes.output_field {
            Some(name) => output_field(name.as_deref())?,
            None => now.settings.output_field,
        },
    };
    let change = match credential(changes.api_key)? {
        Some(credential) => CredentialChange::Set(credential),
        None if goes_elsewhere(&now.settings, &settings) => CredentialChange::Clear,
        None => CredentialChange::Keep,
    };
    let entry = deed.entry(json!({
        "from": { "name": now.settings.name, "base_url": now.settings.base_url, "model_name": now.settings.model_name },
        "to": { "name": settings.name, "base_url": settings.base_url, "model_name": settings.model_name },
        "credential": match change {
            CredentialChange::Keep => "kept",
            CredentialChange::Clear => "cleared",
            CredentialChange::Set(_) => "replaced",
        },
    }));
    app.store.update_connection(id, now.revision, &settings, &change, &app.vault, &entry).await.map_err(|error| {
        match error {
            StoreError::Referenced { .. } => ApiError::ConnectionInUse,
            error => error.into(),
        }
    })?;
    Ok(axum::Json(View::of(read(&app, id).await?, &app.vault)))
}

/// Whether a credential sent along would reach somebody else than before.
fn goes_elsewhere(from: &ConnectionSettings, to: &ConnectionSettings) -> bool {
    let origin = |settings: &ConnectionSettings| Url::parse(&settings.base_url).map(|url| url.origin());
    match (origin(from), origin(to)) {
        (Ok(before), Ok(after)) => from.provider_type != to.provider_type || before != after,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(provider_type: &str, base_url: &str) -> ConnectionSettings {
        ConnectionSettings {
            name: "n".to_owned(),
            provider_type: provider_type.to_owned(),
            base_url: base_url.to_owned(),
            model_name: "m".to_owned(),
            output_field: None,
        }
    }

    #[test]
    fn a_credential_stays_with_its_provider_scheme_host_and_port() {
        let from = at("custom_openai", "https://a.example/v1");
        for (to, elsewhere) in [
            (at("custom_openai", "https://a.example/v2"), false),
            (at("custom_openai", "https://A.example:443/v1"), false),
            (at("openai", "https://a.example/v1"), true),
            (at("custom_openai", "http://a.example/v1"), true),
            (at("custom_openai", "https://b.example/v1"), true),
            (at("custom_openai", "https://a.example:8443/v1"), true),
        ] {
            assert_eq!(goes_elsewhere(&from, &to), elsewhere, "{to:?}");
        }
    }
}
