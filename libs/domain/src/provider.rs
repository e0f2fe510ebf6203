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
    /// OpenAI's models at Microsoft, through its `v1` API.
    #[serde(rename = "azure_openai")]
    AzureOpenAi,
    /// api.anthropic.com.
    Anthropic,
    /// Google's Gemini API.
    Gemini,
    /// api.deepseek.com.
    #[serde(rename = "deepseek")]
    DeepSeek,
    /// api.mistral.ai.
    Mistral,
    /// api.groq.com.
    Groq,
    /// api.x.ai.
    #[serde(rename = "xai")]
    XAi,
    /// openrouter.ai.
    #[serde(rename = "openrouter")]
    OpenRouter,
    /// A local Ollama, by its own API.
    Ollama,
    /// Any server that speaks the OpenAI API: vLLM, llama.cpp, LM Studio, TGI, the demonstration upstream.
    #[serde(rename = "custom_openai")]
    CustomOpenAi,
    /// Cohere's rerank API.
    CohereRerank,
    /// Voyage AI's rerank API.
    VoyageRerank,
}

impl ProviderType {
    /// All types, in the order lists show them.
    pub const ALL: [Self; 13] = [
        Self::OpenAi,
        Self::AzureOpenAi,
        Self::Anthropic,
        Self::Gemini,
        Self::DeepSeek,
        Self::Mistral,
        Self::Groq,
        Self::XAi,
        Self::OpenRouter,
        Self::Ollama,
        Self::CustomOpenAi,
        Self::CohereRerank,
        Self::VoyageRerank,
    ];

    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::AzureOpenAi => "azure_openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::DeepSeek => "deepseek",
            Self::Mistral => "mistral",
            Self::Groq => "groq",
            Self::XAi => "xai",
            Self::OpenRouter => "openrouter",
            Self::Ollama => "ollama",
            Self::CustomOpenAi => "custom_openai",
            Self::CohereRerank => "cohere_rerank",
            Self::VoyageRerank => "voyage_rerank",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.as_str() == name)
    }

    /// Whether it has models that answer conversations.
    #[must_use]
    pub fn chats(self) -> bool {
        !self.reranks()
    }

    /// Whether its API is OpenAI's, or imitates it.
    #[must_use]
    pub fn speaks_openai(self) -> bool {
        match self {
            Self::OpenAi
            | Self::AzureOpenAi
            | Self::DeepSeek
            | Self::Mistral
            | Self::Groq
            | Self::XAi
            | Self::OpenRouter
            | Self::CustomOpenAi => true,
            Self::Anthropic | Self::Gemini | Self::Ollama | Self::CohereRerank | Self::VoyageRerank => false,
        }
    }

    /// Whether it has the API that OpenAI had before chats, by which a text goes on, as far as its reference knows it. The
    /// one that Mistral has in its place is another, and Groq has none.
    #[must_use]
    pub fn completes(self) -> bool {
        match self {
            Self::OpenAi | Self::AzureOpenAi | Self::DeepSeek | Self::XAi | Self::OpenRouter | Self::CustomOpenAi => {
                true
            }
            Self::Mistral
            | Self::Groq
            | Self::Anthropic
            | Self::Gemini
            | Self::Ollama
            | Self::CohereRerank
            | Self::VoyageRerank => false,
        }
    }

    /// Whether it has models that embed texts.
    #[must_use]
    pub fn embeds(self) -> bool {
        match self {
            Self::OpenAi
            | Self::AzureOpenAi
            | Self::Gemini
            | Self::Mistral
            | Self::OpenRouter
            | Self::Ollama
            | Self::CustomOpenAi => true,
            Self::Anthropic | Self::DeepSeek | Self::Groq | Self::XAi | Self::CohereRerank | Self::VoyageRerank => {
                false
            }
        }
    }

    /// Whether it is there to order passages by a question, and for nothing else.
    #[must_use]
    pub fn reranks(self) -> bool {
        matches!(self, Self::CohereRerank | Self::VoyageRerank)
    }

    /// Whether it keeps the beginning of a prompt in a cache, so that a prompt is cheaper when what changes comes last.
    /// Mistral does too (Prompt caching: a tenth of the price for 64 tokens and more that were at the beginning before, the
    /// likelier where a client sends `prompt_cache_key`). Of servers that people run themselves some do, but nothing is
    /// cheaper for it.
    #[must_use]
    pub fn caches_prompts(self) -> bool {
        match self {
            Self::OpenAi
            | Self::AzureOpenAi
            | Self::Anthropic
            | Self::Gemini
            | Self::DeepSeek
            | Self::Mistral
            | Self::Groq
            | Self::XAi
            | Self::OpenRouter => true,
            Self::Ollama | Self::CustomOpenAi | Self::CohereRerank | Self::VoyageRerank => false,
        }
    }

    /// Whether it tells with its usage what a call has cost, in US dollars (OpenRouter, Usage accounting). What others tell
    /// under that name is in whatever they count in.
    #[must_use]
    pub fn tells_cost(self) -> bool {
        self == Self::OpenRouter
    }

    /// How the provider's output is bounded, where a connection says nothing else. Sources are the providers'
    /// references of the call that answers a conversation.
    #[must_use]
    pub fn output_field(self) -> OutputField {
        match self {
            // Each calls `max_tokens` the deprecated one (Create chat completion; xAI: Chat completions).
            Self::OpenAi | Self::AzureOpenAi | Self::Groq | Self::XAi => OutputField::MaxCompletionTokens,
            // `max_tokens` (Anthropic: Create a Message; DeepSeek, Mistral: chat completion; OpenRouter: Parameters).
            // Gemini and Ollama have names of their own for it (`maxOutputTokens`, `num_predict`), which are written
            // where their requests are. Servers that imitate OpenAI know the older name all.
            Self::Anthropic
            | Self::Gemini
            | Self::DeepSeek
            | Self::Mistral
            | Self::OpenRouter
            | Self::Ollama
            | Self::CustomOpenAi => OutputField::MaxTokens,
            Self::CohereRerank | Self::VoyageRerank => OutputField::None,
        }
    }

    /// Where the provider's API is, for those with one public address.
    #[must_use]
    pub fn default_base_url(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("https://api.openai.com/v1"),
            Self::Anthropic => Some("https://api.anthropic.com/v1"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com/v1beta"),
            Self::DeepSeek => Some("https://api.deepseek.com/v1"),
            Self::Mistral => Some("https://api.mistral.ai/v1"),
            Self::Groq => Some("https://api.groq.com/openai/v1"),
            Self::XAi => Some("https://api.x.ai/v1"),
            Self::OpenRouter => Some("https://openrouter.ai/api/v1"),
            Self::Ollama => Some("http://localhost:11434/api"),
            Self::CohereRerank => Some("https://api.cohere.com/v2"),
            Self::VoyageRerank => Some("https://api.voyageai.com/v1"),
            Self::AzureOpenAi | Self::CustomOpenAi => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_known_by_its_name() {
        for provider in ProviderType::ALL {
            assert_eq!(ProviderType::parse(provider.as_str()), Some(provider));
        }
        assert_eq!(ProviderType::parse("OpenAI"), None);
    }
}
