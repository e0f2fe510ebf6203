//! The admin service as a process, over HTTP, on a database of its own.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of a test fail it by panicking"
)]

mod documents;
mod lab;
mod models;
mod projects;
mod rag_stores;
mod requests;
mod session;
mod settings;
mod setup;
mod start;
mod uploads;
