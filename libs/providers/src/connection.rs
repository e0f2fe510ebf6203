//! Where a model is reached, and with what.

use domain::{ConnectionId, ProviderType, Secret};
use url::Url;

use crate::ssrf::{AddressPolicy, AddressRefused};

const MAX_BASE_URL_BYTES: usize = 2048;

/// One way to reach one model.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The row it comes from; names it in logs and metrics.
    pub id: ConnectionId,
    /// The API spoken there.
    pub provider: ProviderType,
    /// Where the API begins, as given by [`validate_base_url`].
    pub base_url: Url,
    /// Sent in the header where the provider looks for it; absent for servers that want none.
    pub credential: Option<Secret>,
    /// The model's name at the provider.
    pub model: String,
}

impl Connection {
    /// The address of a call below the base URL, such as `chat/completions`; of a path that begins with a slash on its
    /// host.
    #[must_use]
    pub fn endpoint(&self, path: &str) -> Url {
        let mut url = self.base_url.clone();
        if path.starts_with('/') {
            url.set_path(path);
            return url;
        }
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{path}"));
        url
    }

    /// The address of a call with a query, which is of the API and never of a client.
    pub(crate) fn endpoint_with(&self, path: &str, query: Option<&'static str>) -> Url {
        let mut url = self.endpoint(path);
        url.set_query(query);
        url
    }

    /// Whether its API begins where its provider's does.
    pub(crate) fn has_default_path(&self) -> bool {
        api_path(self.provider) == Some(self.base_url.path().trim_end_matches('/'))
    }

    pub(crate) fn credential_text(&self) -> Option<&str> {
        self.credential.as_ref().map(Secret::expose).filter(|text| !text.is_empty())
    }
}

/// Why a base URL cannot be used. The texts are for the person who typed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaseUrlError {
    /// It is not a URL at all, or longer than 2048 bytes.
    #[error("the base URL is not a valid URL")]
    Malformed,
    /// The scheme is neither `https` nor `http`.
    #[error("the base URL must begin with https:// or http://")]
    Scheme,
    /// It carries a user name or password.
    #[error("the base URL must not contain a user name or password; the credential is a field of its own")]
    Credentials,
    /// It has a query or a fragment.
    #[error("the base URL must not contain a query or fragment")]
    Query,
    /// Its host is an address that connections may not use.
    #[error("the base URL leads to a private or reserved address, which this installation does not allow")]
    Refused(#[from] AddressRefused),
}

/// Checks a base URL as typed and brings it to the form a [`Connection`] keeps: no slash at its end, and the
/// path of the provider's API when the URL has none. Host names are checked when they are resolved, at
/// each call.
///
/// # Errors
/// See [`BaseUrlError`].
pub fn validate_base_url(text: &str, provider: ProviderType, policy: &AddressPolicy) -> Result<Url, BaseUrlError> {
    let text = text.trim();
    if text.len() > MAX_BASE_URL_BYTES {
        return Err(BaseUrlError::Malformed);
    }
    let mut url = Url::parse(text).map_err(|_| BaseUrlError::Malformed)?;
    if !matches!(url.scheme(), "https" | "http") {
        return Err(BaseUrlError::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BaseUrlError::Credentials);
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(BaseUrlError::Query);
    }
    policy.check_url(&url)?;
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(match api_path(provider) {
        Some(api) if path.is_empty() => api,
        // By its other API, which is OpenAI's, people know it better.
        Some(api) if provider == ProviderType::Ollama && path == "/v1" => api,
        Some(_) | None => &path,
    });
    Ok(url)
}

/// Where on its host a provider's API begins, where that is the same for all.
fn api_path(provider: ProviderType) -> Option<&'static str> {
    match provider {
        ProviderType::OpenAi
        | ProviderType::Anthropic
        | ProviderType::DeepSeek
        | ProviderType::Mistral
        | ProviderType::XAi
        | ProviderType::VoyageRerank => Some("/v1"),
        ProviderType::AzureOpenAi | ProviderType::Groq => Some("/openai/v1"),
        ProviderType::Gemini => Some("/v1beta"),
        ProviderType::OpenRouter => Some("/api/v1"),
        ProviderType::Ollama => Some("/api"),
        ProviderType::CohereRerank => Some("/v2"),
        ProviderType::CustomOpenAi => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, provider: ProviderType) -> Result<String, BaseUrlError> {
        validate_base_url(text, provider, &AddressPolicy::default()).map(String::from)
    }

    #[test]
    fn a_usable_url_is_brought_to_one_form() {
        for (text, provider, kept) in [
            ("https://api.openai.com", ProviderType::OpenAi, "https://api.openai.com/v1"),
            (" https://api.openai.com/v1/ ", ProviderType::OpenAi, "https://api.openai.com/v1"),
            ("https://api.anthropic.com/", ProviderType::Anthropic, "https://api.anthropic.com/v1"),
            ("https://x.openai.azure.com", ProviderType::AzureOpenAi, "https://x.openai.azure.com/openai/v1"),
            ("http://ollama.example:11434", ProviderType::Ollama, "http://ollama.example:11434/api"),
            ("http://ollama.example:11434/v1", ProviderType::Ollama, "http://ollama.example:11434/api"),
            ("http://vllm.example:8000/v1//", ProviderType::CustomOpenAi, "http://vllm.example:8000/v1"),
            ("https://host.example", ProviderType::CustomOpenAi, "https://host.example/"),
        ] {
            assert_eq!(check(text, provider).as_deref(), Ok(kept));
        }
    }

    #[test]
    fn what_cannot_be_called_safely_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", BaseUrlError::Malformed),
            ("api.openai.com/v1", BaseUrlError::Malformed),
            ("ftp://host.example/", BaseUrlError::Scheme),
            ("file:///etc/passwd", BaseUrlError::Scheme),
            ("https://user:pass@host.example/", BaseUrlError::Credentials),
            ("https://host.example/?key=1", BaseUrlError::Query),
            ("https://host.example/#a", BaseUrlError::Query),
            ("http://127.1:8080/v1", BaseUrlError::Refused(AddressRefused)),
            ("http://[::ffff:10.0.0.1]/v1", BaseUrlError::Refused(AddressRefused)),
            ("https://api.localhost./v1", BaseUrlError::Refused(AddressRefused)),
        ] {
            assert_eq!(check(text, ProviderType::CustomOpenAi), Err(reason), "{text}");
        }
        assert_eq!(
            check(&format!("https://host.example/{}", "a".repeat(2048)), ProviderType::OpenAi),
            Err(BaseUrlError::Malformed)
        );
    }

    #[test]
    fn a_default_address_is_in_that_form_already() {
        for provider in ProviderType::ALL {
            let Some(default) = provider.default_base_url() else { continue };
            if provider == ProviderType::Ollama {
                assert_eq!(check(default, provider), Err(BaseUrlError::Refused(AddressRefused)));
            } else {
                assert_eq!(check(default, provider).as_deref(), Ok(default));
            }
        }
    }

    #[test]
    fn an_endpoint_lies_below_the_base() {
        for (base, endpoint) in [
            ("https://host.example/v1", "https://host.example/v1/chat/completions"),
            ("https://host.example", "https://host.example/chat/completions"),
        ] {
            let connection = Connection {
                id: ConnectionId(1),
                provider: ProviderType::CustomOpenAi,
                base_url: validate_base_url(base, ProviderType::CustomOpenAi, &AddressPolicy::default()).unwrap(),
                credential: None,
                model: "m".to_owned(),
            };
            assert_eq!(connection.endpoint("chat/completions").as_str(), endpoint);
        }
    }
}
