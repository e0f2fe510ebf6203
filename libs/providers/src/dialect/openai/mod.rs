//! The OpenAI API, as spoken by OpenAI itself and by servers that imitate it.

mod answer;
mod assemble;
mod batches;
mod bound;
mod calls;
mod chunk;
mod conversation;
mod countable;
mod embeddings;
mod error;
mod features;
mod form;
mod history;
mod lost;
mod models;
mod moderations;
mod outgoing;
mod quirks;
#[cfg(test)]
mod quirks_tests;
mod reader;
mod request;
mod settings;
mod stream;
mod strict;
mod strict_schema;
mod texts;
mod truncate;
mod turns;
mod writer;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::completions::Repeats;
use super::responses::Echo;
use crate::hub::Told;
use crate::tap::Retelling;

pub use answer::{ChatAnswer, Vectors};
pub use assemble::{ContextPlacement, Outgoing, default_placement};
pub use batches::EmbeddingsCall;
pub use bound::OutputBound;
pub use embeddings::{EmbeddingInput, EmbeddingsRequest};
pub use features::Feature;
pub use moderations::ModerationRequest;
pub use request::{ChatMessage, ChatRequest, Content, Part, RequestError, text_at};
pub use stream::{Delivered, StreamOutcome};
pub use strict::check_body;

pub(crate) use answer::{choices_in, read_chat_answer, read_passed, read_vectors, splice_model, spliced, success};
pub(crate) use assemble::ask_for_usage;
pub(crate) use batches::Merge;
pub(crate) use bound::Meter;
pub(crate) use countable::is_setting;
pub(crate) use embeddings::{EMBEDDINGS_PATH, own_embeddings_body, token_count};
pub(crate) use error::{in_body, of_status, refusal, refusal_by};
pub(crate) use features::{costly_members, long_cache};
pub(crate) use outgoing::{body, prefix_of};
pub(crate) use reader::{ChatReader, read_whole};
pub(crate) use request::{MAX_ITEMS, SERVER_OUTPUT_FIELDS, choices, flag, include_usage, optional_text, output_limit};
pub(crate) use stream::StreamTap;
pub(crate) use strict::{read_known, strict};
pub(crate) use texts::{Part as TextPart, Piece, REASONING, pieces};
pub(crate) use truncate::{prefix, tokens_of};
pub(crate) use turns::thought_signature;
pub(crate) use writer::{ChatForm, ChatWriter};

/// The last event of a stream that failed. There is no `[DONE]` after it: the answer is not complete.
pub(crate) fn failure(told: &Told<'_>) -> Bytes {
    let error = json!({
        "error": { "message": told.message, "type": told.kind, "param": null, "code": told.code }
    });
    Bytes::from(format!("data: {error}\n\n"))
}

impl SpliceRules {
    /// Those of a call of any dialect: what its client is told, and how much of it.
    pub(crate) fn of(outgoing: &Outgoing<'_>, is_streamed: bool) -> Self {
        Self {
            public_model: outgoing.public_model.to_owned(),
            strip_usage: false,
            bound: outgoing.output_bound,
            functions: false,
            member: outgoing.member.filter(|_| is_streamed).map(|(name, value)| (name, value.to_owned())),
            retelling: Retelling::default(),
            echo: None,
            repeats: None,
        }
    }
}

/// How a same-dialect answer differs from the provider's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpliceRules {
    /// The model name the client asked for, which replaces the provider's.
    pub public_model: String,
    /// Whether usage is taken out of stream chunks because we asked for it and the client did not.
    pub strip_usage: bool,
    /// The bound that the output must not pass, if there is one.
    pub bound: Option<OutputBound>,
    /// Whether calls of tools are told as `function_call`, as the API once did, where the answer is translated.
    pub functions: bool,
    /// A member of ours, name and JSON, that a stream carries in a chunk of its own before its end.
    pub member: Option<(&'static str, String)>,
    /// What was changed of a request that is translated, and is put back.
    pub(crate) retelling: Retelling,
    /// What an answer repeats of its request, for clients of the Responses API.
    pub(crate) echo: Option<Arc<Echo>>,
    /// What answers repeat of a completion request; `None` for every other API.
    pub(crate) repeats: Option<Arc<Repeats>>,
}
