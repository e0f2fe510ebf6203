//! The store on a real server, through the roles the services use.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of a test fail it by panicking"
)]

mod admission;
mod batches;
mod books;
mod calendar;
mod clock;
mod contention;
mod crashes;
mod entities;
mod filters;
mod given_up;
mod old_snapshots;
mod principals;
mod queue;
mod rollups;
mod schema;
mod silence;
mod usage;
mod vectors;
mod watch;
mod zones;
