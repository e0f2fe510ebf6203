//! What the three services have in common as processes: how they start, say how they are, serve HTTP, and end.
//!
//! A service's `main` is [`main()`] with a function that builds the service and runs it until [`Stop`]. In it the
//! service waits for its database, becomes an instance, serves its [`Listener`]s, reports [`Health`], and at the end
//! runs its [`Stages`] one after another, each with its own budget.

mod health;
mod healthcheck;
mod listener;
mod probes;
mod process;
mod stages;
mod stop;

pub use health::{Follower, Health, Report};
pub use listener::{BindError, Cut, Drained, Limits, Listener, Serving};
pub use process::{Process, Service, Settings, healthcheck, main, start};
pub use stages::{Deadline, Stages};
pub use stop::Stop;
