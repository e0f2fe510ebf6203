//! What the three services have in common as processes: how they start, say how they are, serve HTTP, and end.
//!
//! A service's `main` is [`main()`] with a function that builds the service and runs it until [`Stop`]. That function
//! binds its [`Listener`]s and serves the probes of [`Health`] first, so that the process can be seen to wait; then
//! [`wait_for_schema`] (or [`wait_for_database`] in the service that migrates), the check of the canary (asked for
//! with [`persist`]), and [`Membership::join`]; then it works. Told to stop, it runs its [`Stages`], each with its own budget: not ready, drain,
//! settle, leave, close. Any of the waits may be interrupted with `?`: a process that is told to stop while it starts
//! has done what it was told.

mod advertise;
mod backoff;
mod blocking;
mod health;
mod healthcheck;
mod listener;
mod membership;
mod probes;
mod process;
mod stages;
mod startup;
mod stop;

pub use advertise::advertised;
pub use blocking::{Blocking, BlockingError};
pub use health::{Follower, Health, Report};
pub use listener::{BindError, Cut, Drained, Limits, Listener, Serving};
pub use membership::{Identity, Membership};
pub use process::{Process, Service, Settings, healthcheck, main, start};
pub use stages::{Deadline, Stages};
pub use startup::{StartError, persist, wait_for_database, wait_for_schema};
pub use stop::Stop;
