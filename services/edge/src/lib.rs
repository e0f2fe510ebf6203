//! The edge: the HTTP API that programs call instead of a model provider.
//!
//! A call passes in this order: request id, who is calling ([`auth`]), its body ([`body`]), where it goes ([`catalog`]),
//! whether it may ([`admission`]), passages of the project's documents ([`grounding`]), the provider, the answer, the
//! settlement. [`stack`] has the layers around the handlers with the reason for the place of each; a handler is a file
//! under [`routes`]. Failures are values of [`error`] until [`rescue`] turns them into answers; nothing else makes one.
//!
//! An edge keeps nothing that matters: what it caches is dropped when [`changes`] hears of a change, and what a call
//! holds of a budget is settled however the call ends.

mod admission;
mod app;
mod auth;
mod body;
mod cache;
mod catalog;
mod changes;
mod completion;
mod config;
mod cors;
mod error;
mod grounding;
mod header_names;
mod header_text;
mod json;
mod log_days;
mod money;
mod rescue;
mod routes;
mod single;
mod stack;
mod state;
mod visited;

use std::ffi::OsString;
use std::process::ExitCode;

pub use app::{App, SERVICE};
pub use config::Settings;
pub use cors::{CorsOrigins, NoOrigin, Origin};

/// The whole `main` of the service. `arguments` are those after the program's name, or after `edge` in a program that
/// has several services.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    runtime::main(SERVICE, arguments, async |process, settings| App::bind(settings).await?.run(process).await)
}
