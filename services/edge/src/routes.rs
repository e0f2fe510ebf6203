//! The routes: a folder a resource, a file a verb.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod moderations;
pub(crate) mod request_id;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod retrieve;
pub(crate) mod usage;
