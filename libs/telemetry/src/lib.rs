//! What a process tells about itself: today its log.
//!
//! [`init`] takes over every `tracing` event of the process and writes it to standard output, one line each. The fields
//! of the spans around an event are part of its line, so `request_id` on a request's span is in every line of that
//! request. Records of the `log` crate are not taken: document parsers put text of documents into them.
//!
//! Callers keep content out: a message is a lower-case sentence that stands alone, values are fields with their unit in
//! the name, and no field holds a prompt, an answer, a key, a file name or document text. An error is logged as
//! `error = &error as &dyn std::error::Error`, which writes its whole chain of sources.
//!
//! Metrics and traces join here. The metrics get a module with the one registry that defines every `ragmux_*` name, and
//! crates take handles from it. Traces become a second layer beside the log in [`init`], which then returns a guard
//! whose flush is a stage of the shutdown.

mod event;
mod line;
mod log;

use std::io::IsTerminal;

use config::{LogFormat, Logging};
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;

use crate::line::Style;
use crate::log::Log;

/// Why the log could not be set up.
#[derive(Debug, Error)]
pub enum InitError {
    /// The level list is not understood.
    #[error("LOG_LEVEL is not understood")]
    Level(#[source] tracing_subscriber::filter::ParseError),
    /// The process has a log already.
    #[error("the log of this process is set up already")]
    Twice(#[source] tracing::subscriber::SetGlobalDefaultError),
}

/// Sets up the log of this process under the name of its service. To be called once, early in `main`.
///
/// # Errors
///
/// A level list that is not understood, or a second call.
pub fn init(logging: &Logging, service: &'static str) -> Result<(), InitError> {
    let filter = EnvFilter::try_new(&logging.level).map_err(InitError::Level)?;
    let terminal = std::io::stdout().is_terminal();
    let style = match logging.format {
        LogFormat::Json => Style::Json,
        LogFormat::Auto if !terminal => Style::Json,
        // https://no-color.org: any value that is not empty means no colour.
        LogFormat::Auto | LogFormat::Text => {
            Style::Text { colour: terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
        }
    };
    let subscriber = tracing_subscriber::registry().with(filter).with(Log::new(service, style, std::io::stdout));
    tracing::subscriber::set_global_default(subscriber).map_err(InitError::Twice)
}
