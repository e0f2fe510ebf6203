//! Connections to model providers.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod update;

use std::net::IpAddr;

use domain::{ConnectionId, OutputField, ProviderType, Secret};
use providers::{is_public, validate_base_url};
use serde::Serialize;
use serde_json::Value;
use store::connections::ModelConnection;
use time::OffsetDateTime;
use url::{Host, Url};
use vault::Vault;

use crate::app::App;
use crate::error::ApiError;

const MAX_CREDENTIAL_BYTES: usize = 8192;

/// Shorter credentials show nothing of themselves.
const SHOWS_ITS_ENDS: usize = 16;

/// A connection, as the API shows it.
#[derive(Serialize)]
pub(crate) struct View {
    id: ConnectionId,
    name: String,
    provider_type: String,
    base_url: String,
    model_name: String,
    /// The request field that bounds output, `none` where there is none; `null` for the provider's usual one.
    output_field: Option<&'static str>,
    /// The ends of the credential, enough to tell one from another; `null` when there is none.
    api_key_masked: Option<String>,
    private_upstream: bool,
    last_test: Option<Value>,
    revision: i64,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl View {
    fn of(connection: ModelConnection, vault: &Vault) -> Self {
        // A credential that cannot be opened is still there, and can be replaced.
        let masked = match connection.open_credential(vault) {
            Ok(credential) => credential.map(|credential| mask(&credential)),
            Err(_) => Some("(unreadable)".to_owned()),
        };
        let settings = connection.settings;
        Self {
            id: connection.id,
            private_upstream: leads_to_a_private_address(&settings.base_url),
            name: settings.name,
            provider_type: settings.provider_type,
            base_url: settings.base_url,
            model_name: settings.model_name,
            output_field: settings.output_field.map(OutputField::as_str),
            api_key_masked: masked,
            last_test: connection.last_test,
            revision: connection.revision,
            created_at: connection.created_at,
            updated_at: connection.updated_at,
        }
    }
}

/// One connection, or the error that there is none.
async fn read(app: &App, id: ConnectionId) -> Result<ModelConnection, ApiError> {
    app.store.find_connection(id).await?.ok_or(ApiError::NotFound)
}

fn mask(credential: &Secret) -> String {
    let text = credential.expose();
    if text.len() < SHOWS_ITS_ENDS || !text.is_ascii() {
        return "****".to_owned();
    }
    let (head, tail) = (text.get(..3).unwrap_or_default(), text.get(text.len() - 4..).unwrap_or_default());
    format!("{head}****{tail}")
}

fn leads_to_a_private_address(base_url: &str) -> bool {
    let address: Option<IpAddr> = match Url::parse(base_url).ok().as_ref().and_then(Url::host) {
        Some(Host::Ipv4(address)) => Some(address.into()),
        Some(Host::Ipv6(address)) => Some(address.into()),
        Some(Host::Domain(name)) => return name.eq_ignore_ascii_case("localhost"),
        None => None,
    };
    address.is_some_and(|address| !is_public(address))
}

fn provider(name: &str) -> Result<ProviderType, ApiError> {
    ProviderType::parse(name).ok_or_else(|| {
        let known: Vec<&str> = ProviderType::ALL.iter().map(|provider| provider.as_str()).collect();
        ApiError::invalid(format!("provider_type: expected one of {}", known.join(", ")))
    })
}

fn output_field(name: Option<&str>) -> Result<Option<OutputField>, ApiError> {
    let field = |name| {
        OutputField::parse(name)
            .ok_or_else(|| ApiError::invalid("output_field: expected max_tokens, max_completion_tokens, none or null"))
    };
    name.map(field).transpose()
}

/// The base URL in the form that is kept; a provider with one public address needs none.
fn base_url(app: &App, text: &str, provider: ProviderType) -> Result<String, ApiError> {
    let text = match (text.trim(), provider.default_base_url()) {
        ("", Some(default)) => default,
        ("", None) => return Err(ApiError::invalid("base_url: this provider type needs one")),
        (text, _) => text,
    };
    let url =
        validate_base_url(text, provider, &app.addresses).map_err(|error| ApiError::invalid(error.to_string()))?;
    Ok(url.into())
}

/// A credential as it goes into a header; `None` for an empty one.
fn credential(text: Option<String>) -> Result<Option<Secret>, ApiError> {
    let secret = Secret::new(text.unwrap_or_default());
    let text = secret.expose().trim();
    if text.len() > MAX_CREDENTIAL_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ApiError::invalid("api_key: expected up to 8192 visible ASCII characters without spaces"));
    }
    Ok((!text.is_empty()).then(|| Secret::new(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_credential_gives_nothing_away() {
        assert_eq!(mask(&Secret::new("sk-proj-0123456789abcdef")), "sk-****cdef");
        assert_eq!(mask(&Secret::new("short")), "****");
        assert_eq!(mask(&Secret::new("üüüüüüüüüüüüüüüü")), "****");
    }

    #[test]
    fn only_fields_that_can_be_sent_bound_output() {
        assert_eq!(output_field(None).unwrap(), None);
        assert_eq!(output_field(Some("none")).unwrap(), Some(OutputField::None));
        assert!(output_field(Some("n_predict")).is_err());
    }

    #[test]
    fn a_credential_must_fit_into_a_header() {
        assert_eq!(credential(Some(" sk-1\n".to_owned())).unwrap().unwrap().expose(), "sk-1");
        assert!(credential(None).unwrap().is_none());
        assert!(credential(Some("  ".to_owned())).unwrap().is_none());
        for bad in ["a b", "a\r\nX: y", "schlüssel", &"x".repeat(9000)] {
            assert!(credential(Some(bad.to_owned())).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn private_addresses_are_told() {
        for (url, private) in [
            ("http://127.0.0.1:1/v1", true),
            ("http://[::1]/v1", true),
            ("http://localhost/v1", true),
            ("https://8.8.8.8/v1", false),
            ("https://api.openai.com/v1", false),
        ] {
            assert_eq!(leads_to_a_private_address(url), private, "{url}");
        }
    }
}
