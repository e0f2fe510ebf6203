//! The launcher as people meet it: the real program, in a folder of its own.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of a test fail it by panicking"
)]

mod lab;
mod refusals;
mod whole;
