//! Calls to model providers.
//!
//! A client's request is read without copying it ([`Inbound`] for the three chat APIs, [`EmbeddingsRequest`] and others),
//! made ready for one [`Connection`] and sent by [`Providers`] to one place after the other, before the first byte. Where
//! client and provider speak the same dialect, both ways are bytes with the few edits that the gateway owes: the public
//! model name, usage nobody asked for, events of ours. Else request and answer go through `hub`, which has what all
//! dialects have in common; there is one folder per dialect under `dialect`. Pictures that a provider wants as bytes are
//! fetched first ([`Images`]). Every failure is an [`UpstreamError`], which decides what the client is told and what is
//! charged.
//!
//! Base URLs are typed by people and those of pictures by anybody, so every address is checked before it is dialled
//! ([`AddressPolicy`]), and whatever a provider says in an error is scrubbed of credentials before anyone sees it.

mod breaker;
mod client;
mod connection;
mod countable;
mod dialect;
mod error;
mod fallback;
mod http;
mod hub;
mod images;
mod inbound;
mod journey;
mod json;
mod memory;
mod names;
mod rerank;
mod retry;
mod scrub;
mod single;
mod sse;
mod ssrf;
mod tap;
#[cfg(test)]
mod test_server;
mod tree;
mod usage;

pub use breaker::{BreakerState, Breakers, Pass};
pub use client::{Answer, ChatCall, ChatStream, CountCall, Counted, Destination, MakeCalls, Providers};
pub use connection::{BaseUrlError, Connection, validate_base_url};
pub use countable::Countable;
pub use dialect::ClientDialect;
pub use dialect::anthropic::{AnthropicHeaders, MessagesRequest, costly_betas, messages_error_type};
pub use dialect::completions::{CompletionRequest, Prompt};
pub use dialect::openai::{
    ChatAnswer, ChatMessage, ChatRequest, Content, ContextPlacement, Delivered, EmbeddingInput, EmbeddingsCall,
    EmbeddingsRequest, Feature, ModerationRequest, Outgoing, OutputBound, Part, RequestError, SpliceRules,
    StreamOutcome, Vectors, check_body, default_placement, text_at,
};
pub use dialect::responses::ResponsesRequest;
pub use error::{Charge, UpstreamError, Waited, Words};
pub use fallback::order;
pub use http::{ClientError, HttpOptions, MAX_ANSWER_BYTES, MAX_EMBEDDINGS_BYTES};
pub use hub::Told;
pub use images::{FetchedImages, Image, ImageError, ImageOptions, Images, MAX_IMAGES_PER_REQUEST};
pub use inbound::{Inbound, Utterance, WantedImages};
pub use memory::{Full, Held, Memory};
pub use rerank::{Ranked, RerankRequest, Reranked, search_units};
pub use retry::{Attempts, MAX_ATTEMPTS};
pub use scrub::{MAX_MESSAGE_CHARS, scrub};
pub use single::{Answered, SingleAnswer, SingleCall, SingleFailure};
pub use ssrf::{AddressPolicy, AddressRefused, is_public};
pub use usage::{Lacks, Usage};
