//! Kinds of model provider.

use serde::{Deserialize, Serialize};

/// The request field by which a provider bounds the output of one answer, reasoning included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputField {
    /// The older one, which most servers know.
    MaxTokens,
    /// OpenAI's, which models that reason insist on.
    MaxCompletionTokens,
    /// There is none that is heeded.
    None,
}

impl OutputField {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MaxTokens, Self::MaxCompletionTokens, Self::None];

    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::None => "none",
        }
    }

    /// The field of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.as_str() == name)
    }

    /// The name of the request's member.
    #[must_use]
    pub fn member(self) -> Option<&'static str> {
        (self != Self::None).then(|| self.as_str())
    }
}

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

    /// How the provider's output is bounded, where a connection says nothing else.
    #[must_use]
    pub fn output_field(self) -> OutputField {
        match self {
            Self::OpenAi => OutputField::MaxCompletionTokens,
            Self::CustomOpenAi => OutputField::MaxTokens,
        }
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
