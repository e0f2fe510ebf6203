//! Stories over the real binaries: processes of the shipped program, a real PostgreSQL, real sockets and SDKs.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a story fails by panicking, and a JSON value that lacks a member answers null"
)]

mod bad_input;
mod client;
mod clients;
mod exactness;
mod grounded_answer;
mod ingestion_faults;
mod keys;
mod killed_edge;
mod limits;
mod load;
mod lost_replies;
mod outages;
mod packages;
mod poolers;
mod quotes;
mod sample;
mod search_quality;
mod start_and_stop;
mod stores;
mod streaming_replicas;
mod switching;
mod usage;

/// Whether stories take the time to reach the bars to the figure, where CI is content with less.
fn is_long_run() -> bool {
    std::env::var_os("RAGMUX_LONG_STORIES").is_some_and(|value| !value.is_empty())
}
