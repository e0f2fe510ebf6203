//! Finding passages for a question, and writing them down for a model.
//!
//! [`Retrieval::search`] runs two legs side by side, vectors and words, each with a deadline of its own, and fuses what
//! they found; a leg that fails is left out. [`analyzer`] is the one place where text becomes terms: the worker calls it
//! (through [`index`]) for chunks, searches call it for queries, and the database stores what it says. [`bm25`] and
//! [`fusion`] are pure arithmetic over what the store answers. [`context`] fences the passages for the prompt.

pub mod analyzer;
pub mod bm25;
pub mod context;
pub mod fusion;
pub mod index;
mod legs;
mod search;

pub use search::{
    CredentialUnreadable, EmbeddingUse, Hit, OpenCredential, Retrieval, RetrievalError, Retrieved, Search,
};
