//! The ingestion worker: claims documents under a lease, parses each in a process of its own, cuts, embeds and writes
//! it, and makes the complete version searchable in one statement.
//!
//! [`dispatcher`] claims and [`lease`] keeps the claims; [`job`] is the life of one document; [`app`] starts and stops
//! them, and [`vectors`] looks after the tables of large stores. Any number of workers may run and any of them may be killed at any moment: a claim whose lease lapses is
//! claimed by another, and the fence in every write keeps a worker that wakes up late from doing harm.

mod app;
mod config;
mod dispatcher;
mod embed;
#[cfg(test)]
mod fixture;
mod job;
mod lanes;
mod lease;
pub mod parser;
mod plan;
mod preview;
mod progress;
mod record;
mod switch;
mod tally;
mod vectors;

use std::ffi::OsString;
use std::process::ExitCode;

pub use app::run;
pub use config::Config;

/// The service's name and version.
pub const SERVICE: runtime::Service = runtime::Service { name: "ingestion-worker", version: env!("CARGO_PKG_VERSION") };

/// Runs the service with the arguments that follow its name, or, when the first says so, becomes a parser or shows what
/// the parser makes of files.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|argument| argument == extract::protocol::COMMAND).is_some() {
        return extract::child::main(arguments);
    }
    undumpable();
    if arguments.next_if(|argument| argument == preview::COMMAND).is_some() {
        return preview::main(arguments);
    }
    runtime::main(SERVICE, arguments, run)
}

/// The worker holds opened credentials and what parsers send: no other process of its user may look into it, and nothing
/// of it is written out when it dies. A kernel that refuses that leaves it as it was.
fn undumpable() {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

#[cfg(test)]
mod tests {
    use rustix::process::{DumpableBehavior, dumpable_behavior};

    #[test]
    fn nobody_may_look_into_the_worker() {
        super::undumpable();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
