//! Finding passages for a question, and writing them down for a model.
//!
//! [`Retrieval::search`] runs two legs side by side, vectors and words, each with a deadline of its own, and fuses what
//! they found; a leg that fails is left out, and one that would only add noise is not asked ([`Plan`]). A [`Reranker`] may order what was found. [`analyzer`] is the one place where text becomes terms: the worker calls it
//! (through [`index`]) for chunks, searches call it for queries, and the database stores what it says. [`bm25`] and
//! [`fusion`] are pure arithmetic over what the store answers. [`context`] fences the passages for the prompt.
//! [`connection()`] stands here because no crate below knows both the store's targets and the providers' connections.

pub mod analyzer;
pub mod bm25;
pub mod calibrate;
mod choose;
mod connection;
pub mod context;
mod coverage;
mod error;
mod escapes;
mod explain;
mod fence;
pub mod fusion;
pub mod index;
mod judging;
mod legs;
mod narrowing;
mod near;
mod owed;
mod plan;
mod query_cache;
mod rerank;
mod search;

pub use connection::{AddressUnreadable, connection};
pub use explain::Explained;
pub use fence::defused;
pub use owed::{ModelUse, Work};
pub use plan::{Because, Plan};
pub use rerank::Reranker;
pub use search::{CredentialUnreadable, Hit, OpenCredential, Retrieval, RetrievalError, Retrieved, Search};
