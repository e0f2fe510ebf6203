//! A client's chat request, in whichever dialect it came.

use std::borrow::Cow;

use bytes::Bytes;
use domain::ProviderType;
use http::HeaderMap;
use serde_json::value::RawValue;

use crate::client::ChatCall;
use crate::countable::Countable;
use crate::dialect::anthropic::{self, MessagesRequest};
use crate::dialect::completions::CompletionRequest;
use crate::dialect::openai::{self, ChatRequest, ContextPlacement, Feature, Outgoing, RequestError};
use crate::dialect::responses::ResponsesRequest;
use crate::dialect::{ClientDialect, UpstreamDialect, gemini, ollama};
use crate::error::UpstreamError;
use crate::hub::{Conversation, Lost, drop_path};
use crate::tap::Retelling;

/// A request that is read and can be made ready for any provider.
#[derive(Clone, Debug)]
pub enum Inbound<'a> {
    /// OpenAI's Chat Completions.
    Chat(ChatRequest<'a>),
    /// Anthropic's Messages.
    Messages(MessagesRequest<'a>),
    /// OpenAI's Responses.
    Responses(ResponsesRequest<'a>),
    /// OpenAI's Completions.
    Completions(CompletionRequest<'a>),
}

/// What one side said in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Utterance<'a> {
    /// Whether it was the user, and not the model.
    pub is_users: bool,
    /// The text; never empty.
    pub text: Cow<'a, str>,
}

/// Images that a provider wants the bytes of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedImages {
    /// Their URLs, each as often as the request names it.
    pub urls: Vec<String>,
    /// The media types that count.
    pub accepted: &'static [&'static str],
}

impl<'a> Inbound<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(dialect: ClientDialect, body: &'a [u8]) -> Result<Self, RequestError> {
        Ok(match dialect {
            ClientDialect::Chat => Self::Chat(ChatRequest::parse(body)?),
            ClientDialect::Messages => Self::Messages(MessagesRequest::parse(body)?),
            ClientDialect::Responses => Self::Responses(ResponsesRequest::parse(body)?),
            ClientDialect::Completions => Self::Completions(CompletionRequest::parse(body)?),
        })
    }

    /// The dialect it came in, in which the answer goes back.
    #[must_use]
    pub fn dialect(&self) -> ClientDialect {
        match self {
            Self::Chat(_) => ClientDialect::Chat,
            Self::Messages(_) => ClientDialect::Messages,
            Self::Responses(_) => ClientDialect::Responses,
            Self::Completions(_) => ClientDialect::Completions,
        }
    }

    /// The model name asked for; empty when none is given.
    #[must_use]
    pub fn model(&self) -> &str {
        match self {
            Self::Chat(request) => &request.model,
            Self::Messages(request) => &request.model,
            Self::Responses(request) => &request.model,
            Self::Completions(request) => &request.model,
        }
    }

    /// Whether the answer is to be streamed.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        match self {
            Self::Chat(request) => request.stream,
            Self::Messages(request) => request.stream,
            Self::Responses(request) => request.stream,
            Self::Completions(request) => request.stream,
        }
    }

    /// How many answers are asked for and paid for.
    #[must_use]
    pub fn answers(&self) -> u64 {
        match self {
            Self::Chat(request) => request.n,
            Self::Messages(_) | Self::Responses(_) => 1,
            Self::Completions(request) => request.answers(),
        }
    }

    /// The largest of all fields that bound the output, in tokens per answer; `None` when nothing bounds it.
    #[must_use]
    pub fn output_limit(&self) -> Option<u64> {
        match self {
            Self::Chat(request) => request.output_limit,
            Self::Messages(request) => Some(request.max_tokens),
            Self::Responses(request) => request.max_output_tokens,
            Self::Completions(request) => request.output_limit,
        }
    }

    /// What a provider is known to write at most of one answer where the client does not bound it, in tokens, whatever
    /// its model could write.
    #[must_use]
    pub fn usual_output(&self, provider: ProviderType) -> Option<u64> {
        match self {
            Self::Chat(_) | Self::Messages(_) | Self::Responses(_) => None,
            Self::Completions(_) => CompletionRequest::usual_output(provider),
        }
    }

    /// Whether it is a conversation, to which rules and passages can be added.
    #[must_use]
    pub fn is_conversation(&self) -> bool {
        !matches!(self, Self::Completions(_))
    }

    /// Whom the client asks for.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Chat(request) => request.user.as_deref(),
            Self::Messages(request) => request.user.as_deref(),
            Self::Responses(request) => request.user.as_deref(),
            Self::Completions(request) => request.user.as_deref(),
        }
    }

    /// `metadata` as sent.
    #[must_use]
    pub fn metadata(&self) -> Option<&'a RawValue> {
        match self {
            Self::Chat(request) => request.metadata,
            Self::Messages(request) => request.metadata,
            Self::Responses(request) => request.metadata,
            Self::Completions(request) => request.metadata,
        }
    }

    /// Whether the passages used are to be returned (`ragmux.include_context`).
    #[must_use]
    pub fn includes_context(&self) -> bool {
        match self {
            Self::Chat(request) => request.include_context,
            Self::Messages(request) => request.include_context,
            Self::Responses(request) => request.include_context,
            Self::Completions(_) => false,
        }
    }

    /// The text of what the user said last.
    #[must_use]
    pub fn last_user_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Chat(request) => request.last_user_text(),
            Self::Messages(request) => request.last_user_text(),
            Self::Responses(request) => request.last_user_text(),
            Self::Completions(_) => None,
        }
    }

    /// What user and model said, in the order of the conversation. Rules, results of tools and whatever has no text are
    /// left out.
    #[must_use]
    pub fn utterances(&self) -> Vec<Utterance<'_>> {
        match self {
            Self::Chat(request) => request.utterances(),
            Self::Messages(request) => request.utterances(),
            Self::Responses(request) => request.utterances(),
            Self::Completions(_) => Vec::new(),
        }
    }

    /// Whether the conversation ends with results of tools, and the user says nothing to them.
    #[must_use]
    pub fn ends_with_tool_result(&self) -> bool {
        match self {
            Self::Chat(request) => request.ends_with_tool_result(),
            Self::Messages(request) => request.ends_with_tool_result(),
            Self::Responses(request) => request.ends_with_tool_result(),
            Self::Completions(_) => false,
        }
    }

    /// Everything that is, or may become, the prompt, for counting its tokens.
    #[must_use]
    pub fn countable(&self) -> Countable<'_> {
        match self {
            Self::Chat(request) => request.countable(),
            Self::Messages(request) => request.countable(),
            Self::Responses(request) => request.countable(),
            Self::Completions(request) => request.countable(),
        }
    }

    /// All features of the request that cost more than its tokens.
    ///
    /// # Errors
    /// [`RequestError`] for a feature whose kind cannot be told.
    pub fn costly_features(&self, provider: ProviderType) -> Result<Vec<Feature>, RequestError> {
        match self {
            Self::Chat(request) => request.costly_features(provider),
            Self::Messages(request) => Ok(request.costly_features(provider)),
            Self::Responses(request) => Ok(request.costly_features(provider)),
            Self::Completions(request) => Ok(request.costly_features(provider)),
        }
    }

    /// Whether a provider wants the bytes of images that requests of this dialect name by URL, and does not fetch them
    /// itself.
    #[must_use]
    pub fn wants_images(dialect: ClientDialect, provider: ProviderType) -> bool {
        UpstreamDialect::of(provider, dialect).is_some_and(|upstream| upstream.wants_bytes_of().is_some())
    }

    /// For each of these providers the images of the request that it wants to have fetched; `None` where there are none.
    #[must_use]
    pub fn images_to_fetch(&self, providers: &[ProviderType]) -> Vec<Option<WantedImages>> {
        let conversation = match self {
            Self::Chat(request) => request.conversation(),
            Self::Messages(request) => request.conversation(),
            Self::Responses(request) => request.conversation(),
            // Their prompts are texts.
            Self::Completions(_) => return providers.iter().map(|_| None).collect(),
        };
        // What is wrong with it is said when the call is made.
        let urls = conversation.as_ref().map(Conversation::image_urls).unwrap_or_default();
        let wanted = |provider: &ProviderType| {
            let accepted = UpstreamDialect::of(*provider, self.dialect())?.wants_bytes_of()?;
            let is_far = |url: &&&str| *provider != ProviderType::Gemini || !gemini::is_file(url);
            let urls: Vec<_> = urls.iter().filter(is_far).map(|url| (*url).to_owned()).collect();
            (!urls.is_empty()).then_some(WantedImages { urls, accepted })
        };
        providers.iter().map(wanted).collect()
    }

    /// The call for a provider.
    ///
    /// # Errors
    /// [`UpstreamError::Unfit`] where the request has no form that the provider would understand.
    pub fn call(&self, provider: ProviderType, outgoing: &Outgoing<'_>) -> Result<ChatCall, UpstreamError> {
        let none = || RequestError::Invalid { field: "model".to_owned(), must: "the name of a model that chats" };
        let upstream = UpstreamDialect::of(provider, self.dialect()).ok_or_else(|| UpstreamError::Unfit(none()))?;
        match (self, upstream) {
            (Self::Chat(request), UpstreamDialect::Chat) => Ok(request.call_to(provider, outgoing)),
            (Self::Messages(request), UpstreamDialect::Messages) => Ok(request.call(outgoing)),
            (Self::Responses(request), UpstreamDialect::Responses) => Ok(request.call(outgoing)),
            (Self::Completions(request), UpstreamDialect::Completions) => request.call(outgoing),
            // Nobody else is led there.
            (_, UpstreamDialect::Responses | UpstreamDialect::Completions) => Err(UpstreamError::Unfit(none())),
            (_, UpstreamDialect::Chat) => self.translated(upstream, provider, outgoing, |conversation, dropped| {
                openai::body(conversation, provider, outgoing, dropped)
            }),
            (_, UpstreamDialect::Messages) => self.translated(upstream, provider, outgoing, |conversation, dropped| {
                anthropic::body(conversation, outgoing, dropped)
            }),
            (_, UpstreamDialect::Gemini) => self.translated(upstream, provider, outgoing, |conversation, dropped| {
                gemini::body(conversation, outgoing, dropped)
            }),
            (_, UpstreamDialect::Ollama) => self.translated(upstream, provider, outgoing, |conversation, dropped| {
                ollama::body(conversation, outgoing, dropped)
            }),
        }
    }

    /// What the client calls what has no place at a provider; `None` where it has not said it.
    fn name_of(&self, lost: Lost) -> Option<String> {
        match self {
            Self::Chat(request) => request.name_of(lost),
            Self::Messages(request) => request.name_of(lost),
            Self::Responses(request) => request.name_of(lost),
            Self::Completions(_) => None,
        }
    }

    /// What is said of a conversation, which clients of the Responses API know by another name.
    fn in_own_words(&self, error: RequestError) -> RequestError {
        match (self, error) {
            (Self::Responses(_), RequestError::Invalid { field, must }) if field == "messages" => {
                RequestError::Invalid { field: "input".to_owned(), must }
            }
            (_, error) => error,
        }
    }

    /// The call for a provider of another dialect. `write` makes the body, and lists what it has no place for.
    fn translated(
        &self,
        upstream: UpstreamDialect,
        provider: ProviderType,
        outgoing: &Outgoing<'_>,
        write: impl FnOnce(&Conversation<'_>, &mut Vec<Lost>) -> Result<Vec<u8>, RequestError>,
    ) -> Result<ChatCall, UpstreamError> {
        let (mut conversation, mut rules) = match self {
            Self::Chat(request) => (request.conversation().map_err(UpstreamError::Unfit)?, request.rules(outgoing)),
            Self::Messages(request) => (request.conversation().map_err(UpstreamError::Unfit)?, request.rules(outgoing)),
            Self::Responses(request) => {
                (request.conversation().map_err(UpstreamError::Unfit)?, request.rules(outgoing))
            }
            Self::Completions(_) => {
                let field = "model".to_owned();
                return Err(UpstreamError::Unfit(RequestError::Invalid { field, must: "one that has this API" }));
            }
        };
        let at_last_user = outgoing.placement == ContextPlacement::LastUser;
        conversation.ground(outgoing.project_prompt, outgoing.context, at_last_user);
        let longest = upstream.longest_tool_name(provider);
        let names = longest.map(|most| conversation.shorten_names(most)).unwrap_or_default();
        rules.retelling = Retelling::new(names, openai::prefix_of(&conversation, provider));
        let mut lost = Vec::new();
        if upstream != UpstreamDialect::Ollama {
            lost.extend(conversation.extras.iter().map(|(name, _)| Lost::Setting(name)));
        }
        let body = write(&conversation, &mut lost).map_err(|error| UpstreamError::Unfit(self.in_own_words(error)))?;
        let mut dropped = conversation.dropped.clone();
        lost.into_iter().filter_map(|lost| self.name_of(lost)).for_each(|path| drop_path(&mut dropped, path));
        Ok(ChatCall {
            body: Bytes::from(body),
            stream: conversation.stream,
            rules,
            dropped: dropped.into_iter().map(Cow::into_owned).collect(),
            client: self.dialect(),
            upstream,
            headers: HeaderMap::new(),
        })
    }
}
