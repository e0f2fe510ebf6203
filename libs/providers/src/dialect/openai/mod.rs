//! The OpenAI API, as spoken by OpenAI itself and by servers that imitate it.

mod answer;
mod assemble;
mod embeddings;
mod error;
mod request;
mod stream;

pub use answer::{ChatAnswer, EmbeddingsAnswer, Vectors};
pub use assemble::{ContextPlacement, Outgoing, default_placement};
pub use embeddings::{EmbeddingInput, EmbeddingsRequest};
pub use request::{ChatMessage, ChatRequest, Content, Part, RequestError};
pub use stream::{Delivered, StreamOutcome, StreamTap};

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
}
