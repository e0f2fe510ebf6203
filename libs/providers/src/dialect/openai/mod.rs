//! The OpenAI API, as spoken by OpenAI itself and by servers that imitate it.

mod answer;
mod assemble;
mod bound;
mod chunk;
mod embeddings;
mod error;
mod features;
mod request;
mod stream;
mod strict;
mod texts;
mod truncate;

pub use answer::{ChatAnswer, EmbeddingsAnswer, Vectors};
pub use assemble::{ContextPlacement, Outgoing, default_placement};
pub use bound::OutputBound;
pub use embeddings::{EmbeddingInput, EmbeddingsRequest};
pub use features::Feature;
pub use request::{ChatMessage, ChatRequest, Content, Part, RequestError};
pub use stream::{Delivered, StreamOutcome, StreamTap};
pub use strict::check_body;

pub(crate) use answer::{read_chat_answer, read_embeddings_answer, read_vectors};
pub(crate) use embeddings::own_embeddings_body;
pub(crate) use error::{in_body, refusal};

/// How a same-dialect answer differs from the provider's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpliceRules {
    /// The model name the client asked for, which replaces the provider's.
    pub public_model: String,
    /// Whether usage is taken out of stream chunks because we asked for it and the client did not.
    pub strip_usage: bool,
    /// The bound that the output must not pass, if there is one.
    pub bound: Option<OutputBound>,
    /// A member of ours, name and JSON, that a stream carries in a chunk of its own before its end.
    pub member: Option<(&'static str, String)>,
}
