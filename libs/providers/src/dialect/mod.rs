//! One folder per dialect: requests in and out, answers in and out, streams, errors.

pub(crate) mod anthropic;
pub(crate) mod cohere;
pub(crate) mod completions;
pub(crate) mod embeddings;
#[cfg(test)]
mod error_tests;
pub(crate) mod fields;
pub(crate) mod gemini;
#[cfg(test)]
pub(crate) mod golden;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod responses;
pub(crate) mod said;
#[cfg(test)]
mod translation_tests;
pub(crate) mod voyage;

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use domain::{ProviderType, Secret};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::connection::Connection;
use crate::error::UpstreamError;
use crate::hub::{Finish, Reader, Told, Whole, Writer};
use crate::sse::Scanner;
use crate::tap::{Framing, Lines, Passed, Tap, Translated};
use crate::usage::Usage;
use anthropic::{MessageReader, MessageWriter, PassingMessage};
use gemini::GeminiReader;
use ollama::OllamaReader;
use openai::{ChatAnswer, ChatForm, ChatReader, ChatWriter, SpliceRules, StreamTap};
use responses::{PassingResponse, ResponseReader, ResponseWriter};

/// The API a client asks for a chat by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientDialect {
    /// OpenAI's Chat Completions.
    Chat,
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
    /// OpenAI's Completions, from before chats: one text goes on.
    Completions,
}

impl ClientDialect {
    /// Whether a provider can be asked what such a client asks, by the same API or a translation.
    #[must_use]
    pub fn is_served_by(self, provider: ProviderType) -> bool {
        UpstreamDialect::of(provider, self).is_some()
    }

    /// What a client is told when its stream fails before the provider has said anything.
    #[must_use]
    pub fn failure(self, told: &Told<'_>) -> Bytes {
        match self {
            Self::Chat | Self::Completions => openai::failure(told),
            Self::Messages => anthropic::failure(told),
            Self::Responses => responses::failure(told),
        }
    }

    /// What writes answers of other dialects, for one call.
    fn writer(self, rules: &SpliceRules) -> Box<dyn Writer> {
        let created_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let created_s = i64::try_from(created_s).unwrap_or(i64::MAX);
        match self {
            // Completions are translated to nothing.
            Self::Chat | Self::Completions => Box::new(ChatWriter::new(ChatForm {
                model: rules.public_model.clone(),
                created_s,
                usage: !rules.strip_usage,
                functions: rules.functions,
            })),
            Self::Messages => Box::new(MessageWriter::new(rules.public_model.clone())),
            Self::Responses => {
                let echo = rules.echo.clone().unwrap_or_default();
                Box::new(ResponseWriter::new(rules.public_model.clone(), created_s, echo))
            }
        }
    }

    /// A stream of another dialect on its way to such a client.
    pub(crate) fn translated_tap(self, framing: Framing, reader: Box<dyn Reader>, rules: SpliceRules) -> Box<dyn Tap> {
        let writer = self.writer(&rules);
        Box::new(Translated::new(framing, reader, writer, rules.bound, rules.member, rules.retelling))
    }

    /// A whole answer of another dialect, as such a client gets it.
    pub(crate) fn translated_answer(self, mut whole: Whole, rules: &SpliceRules) -> ChatAnswer {
        rules.retelling.clone().retell_whole(&mut whole);
        let counted_output = rules.bound.map(|bound| whole.bound(&bound));
        let usage = whole.usage.and_then(Usage::believed);
        ChatAnswer {
            body: self.writer(rules).whole(&whole, None),
            usage,
            finish_reasons: whole.finish.iter().map(Finish::as_openai).map(str::to_owned).collect(),
            delivered: whole.delivered(),
            counted_output,
            upstream_model: whole.model,
        }
    }
}

/// The API a provider is asked for a chat by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamDialect {
    /// OpenAI's Chat Completions.
    Chat,
    /// Anthropic's Messages.
    Messages,
    /// Google's Gemini API.
    Gemini,
    /// OpenAI's Responses; only for clients of the same.
    Responses,
    /// Ollama's own API.
    Ollama,
    /// OpenAI's Completions; for clients of the same, and those alone.
    Completions,
}

impl UpstreamDialect {
    /// The one for a provider and the dialect of a client; `None` for a provider without models that chat.
    pub(crate) fn of(provider: ProviderType, client: ClientDialect) -> Option<Self> {
        match (provider, client) {
            (_, ClientDialect::Completions) => provider.completes().then_some(Self::Completions),
            (ProviderType::OpenAi | ProviderType::AzureOpenAi, ClientDialect::Responses) => Some(Self::Responses),
            (
                ProviderType::OpenAi
                | ProviderType::AzureOpenAi
                | ProviderType::DeepSeek
                | ProviderType::Mistral
                | ProviderType::Groq
                | ProviderType::XAi
                | ProviderType::OpenRouter
                | ProviderType::CustomOpenAi,
                ClientDialect::Chat | ClientDialect::Messages | ClientDialect::Responses,
            ) => Some(Self::Chat),
            (ProviderType::Anthropic, _) => Some(Self::Messages),
            (ProviderType::Gemini, _) => Some(Self::Gemini),
            (ProviderType::Ollama, _) => Some(Self::Ollama),
            (ProviderType::CohereRerank | ProviderType::VoyageRerank, _) => None,
        }
    }

    /// Where a call goes, below the connection's base URL or, with a slash before it, on its host, and its query.
    pub(crate) fn place(self, connection: &Connection, is_streamed: bool) -> (Cow<'static, str>, Option<&'static str>) {
        let model = &connection.model;
        match self {
            Self::Chat => ("chat/completions".into(), None),
            Self::Messages => ("messages".into(), None),
            Self::Responses => ("responses".into(), None),
            Self::Gemini if is_streamed => {
                (gemini::path(model, "streamGenerateContent").into(), Some(gemini::STREAM_QUERY))
            }
            Self::Gemini => (gemini::path(model, "generateContent").into(), None),
            Self::Ollama => ("chat".into(), None),
            // It is beside the API (DeepSeek API reference, Create FIM completion).
            Self::Completions if connection.provider == ProviderType::DeepSeek && connection.has_default_path() => {
                ("/beta/completions".into(), None)
            }
            Self::Completions => ("completions".into(), None),
        }
    }

    /// The most letters of a tool's name; `None` where there is no such bound (OpenAI API reference, Create chat completion,
    /// `tools`; Gemini API reference, FunctionDeclaration). Anthropic takes twice as many.
    pub(crate) fn longest_tool_name(self, provider: ProviderType) -> Option<usize> {
        match self {
            Self::Chat if provider == ProviderType::CustomOpenAi => None,
            Self::Chat | Self::Gemini => Some(64),
            Self::Messages | Self::Responses | Self::Ollama | Self::Completions => None,
        }
    }

    /// The media types of images of which the dialect wants the bytes; `None` where the provider fetches URLs itself.
    pub(crate) fn wants_bytes_of(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Chat | Self::Messages | Self::Responses | Self::Completions => None,
            Self::Gemini => Some(gemini::IMAGE_TYPES),
            Self::Ollama => Some(ollama::IMAGE_TYPES),
        }
    }

    /// A stream on its way to a client.
    pub(crate) fn tap(self, client: ClientDialect, rules: SpliceRules, credential: Option<Secret>) -> Box<dyn Tap> {
        let events = || Framing::Events(Scanner::default());
        match (client, self) {
            (ClientDialect::Chat, Self::Chat) | (_, Self::Completions) => Box::new(StreamTap::new(rules, credential)),
            (ClientDialect::Messages, Self::Messages) => {
                let reader = Box::new(MessageReader::new(credential));
                Box::new(Passed::new(reader, Box::<PassingMessage>::default(), rules))
            }
            // Only clients of the same dialect are led there.
            (_, Self::Responses) => {
                let passing = Box::new(PassingResponse::new(&rules));
                Box::new(Passed::new(Box::new(ResponseReader::new(credential)), passing, rules))
            }
            (_, Self::Chat) => client.translated_tap(events(), Box::new(ChatReader::new(credential)), rules),
            (_, Self::Messages) => client.translated_tap(events(), Box::new(MessageReader::new(credential)), rules),
            (_, Self::Gemini) => client.translated_tap(events(), Box::new(GeminiReader::new(credential)), rules),
            (_, Self::Ollama) => {
                let lines = Framing::Lines(Lines::default());
                client.translated_tap(lines, Box::new(OllamaReader::new(credential)), rules)
            }
        }
    }

    /// A whole answer, as its client gets it.
    pub(crate) fn answer(
        self,
        client: ClientDialect,
        body: &Bytes,
        rules: &SpliceRules,
        credential: Option<&str>,
    ) -> Result<ChatAnswer, UpstreamError> {
        match (client, self) {
            (ClientDialect::Chat, Self::Chat) => openai::read_chat_answer(body, rules, credential),
            (ClientDialect::Messages, Self::Messages) => anthropic::read_answer(body, rules, credential),
            (_, Self::Responses) => responses::read_answer(body, rules, credential),
            (_, Self::Completions) => completions::read_answer(body, rules, credential),
            (_, Self::Chat) => Ok(client.translated_answer(openai::read_whole(body, credential)?, rules)),
            (_, Self::Messages) => Ok(client.translated_answer(anthropic::read_whole(body, credential)?, rules)),
            (_, Self::Gemini) => Ok(client.translated_answer(gemini::read_whole(body, credential)?, rules)),
            (_, Self::Ollama) => Ok(client.translated_answer(ollama::read_whole(body, credential)?, rules)),
        }
    }
}

/// The decision for an answer with an error status, from any provider.
pub(crate) fn refusal(connection: &Connection, status: u16, headers: &HeaderMap, body: &[u8]) -> UpstreamError {
    match connection.provider {
        ProviderType::Gemini => gemini::refusal(status, headers, body, connection.credential_text()),
        provider => openai::refusal_by(provider, status, headers, body, connection.credential_text()),
    }
}

/// The headers that a provider wants with every call, where the call has none of its own.
pub(crate) fn usual_headers(provider: ProviderType) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if provider == ProviderType::Anthropic {
        // Required (Anthropic API reference, Versions).
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"));
    }
    headers
}

/// The headers that say who we are to a provider.
///
/// # Errors
/// The credential cannot be put into a header.
pub(crate) fn credential_headers(connection: &Connection) -> Result<HeaderMap, UpstreamError> {
    let mut headers = HeaderMap::new();
    let Some(credential) = connection.credential_text() else { return Ok(headers) };
    let (name, value) = match connection.provider {
        ProviderType::Anthropic => ("x-api-key", credential.to_owned()),
        ProviderType::Gemini => ("x-goog-api-key", credential.to_owned()),
        ProviderType::AzureOpenAi => ("api-key", credential.to_owned()),
        ProviderType::OpenAi
        | ProviderType::DeepSeek
        | ProviderType::Mistral
        | ProviderType::Groq
        | ProviderType::XAi
        | ProviderType::OpenRouter
        | ProviderType::Ollama
        | ProviderType::CustomOpenAi
        | ProviderType::CohereRerank
        | ProviderType::VoyageRerank => ("authorization", format!("Bearer {credential}")),
    };
    let mut value = HeaderValue::from_str(&value).map_err(|_| UpstreamError::Auth { status: 401 })?;
    value.set_sensitive(true);
    headers.insert(HeaderName::from_static(name), value);
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use domain::ConnectionId;
    use url::Url;

    use super::*;

    #[test]
    fn every_provider_gets_its_credential_where_it_looks_for_it() {
        for (provider, name, value) in [
            (ProviderType::OpenAi, "authorization", "Bearer sk"),
            (ProviderType::AzureOpenAi, "api-key", "sk"),
            (ProviderType::Anthropic, "x-api-key", "sk"),
            (ProviderType::Gemini, "x-goog-api-key", "sk"),
            (ProviderType::CohereRerank, "authorization", "Bearer sk"),
        ] {
            let mut connection = Connection {
                id: ConnectionId(1),
                provider,
                base_url: Url::parse("http://host.example/v1").unwrap(),
                credential: Some(Secret::new("sk")),
                model: "m".to_owned(),
            };
            let headers = credential_headers(&connection).unwrap();
            assert_eq!(headers.get(name).unwrap(), value);
            assert!(headers.get(name).unwrap().is_sensitive());
            connection.credential = None;
            assert!(!credential_headers(&connection).unwrap().contains_key(name));
            connection.credential = Some(Secret::new("line\nend"));
            assert!(credential_headers(&connection).is_err());
        }
    }
}
