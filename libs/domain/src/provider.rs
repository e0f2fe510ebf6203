//! Kinds of model provider.

use serde::{Deserialize, Serialize};

/// A provider's API, as chosen for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderType {
    /// api.openai.com.
    #[serde(rename = "openai")]
    OpenAi,
    /// Any server that speaks the OpenAI API: vLLM, llama.cpp, LM Studio, TGI, the demonstration upstream.
    #[serde(rename = "custom_openai")]
    CustomOpenAi,
}

impl ProviderType {
    /// All types, in the order lists show them.
    pub const ALL: [Self; 2] = [Self::OpenAi, Self::CustomOpenAi];

    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::CustomOpenAi => "custom_openai",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.as_str() == name)
    }

    /// Where the provider's API is, for those with one public address.
    #[must_use]
    pub fn default_base_url(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("https://api.openai.com/v1"),
            Self::CustomOpenAi => None,
        }
    }
}
