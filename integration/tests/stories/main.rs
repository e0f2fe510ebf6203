//! Stories over the real binaries: processes of the shipped program, a real PostgreSQL, real sockets and SDKs.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a story fails by panicking, and a JSON value that lacks a member answers null"
)]

mod bad_input;
mod client;
mod grounded_answer;
mod ingestion_faults;
mod limits;
mod python;
mod sample;
mod start_and_stop;
mod streaming_replicas;
mod usage;
