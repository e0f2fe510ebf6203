//! Edges over real HTTP, on a real database, before a scripted provider.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of a test fail it by panicking"
)]

mod abort;
mod access;
mod answers;
mod bodies;
mod browsers;
mod chat;
mod completions;
mod condensed;
mod counting;
mod denials;
mod embeddings;
mod fallback;
mod filtered;
mod hard;
mod hold;
mod lifecycle;
mod limits;
mod messages;
mod mistakes;
mod mixed;
mod models;
mod moderations;
mod pace;
mod passages;
mod pauses;
mod pictures;
mod reported_cost;
mod rerank;
mod reranked;
mod responses;
mod retrieved;
mod script;
mod settings;
mod side_calls;
mod standstill;
mod strangers;
mod stream;
mod tags;
mod translated;
mod usage;
mod withdrawn;
mod world;
