//! `ragmux`: the whole product behind one command, and each of its services behind one word.
//!
//! Without arguments it is the launcher: it prepares a private PostgreSQL, starts the services as child processes of
//! this same program, sets the installation up through the admin API as a user would, and stops everything in order.
//! `ragmux edge`, `ragmux ingestion-worker`, `ragmux admin` and `ragmux upstream` are the processes themselves.

mod arguments;
mod children;
mod commands;
mod database;
mod guard;
mod installation;
mod models;
mod parent;
mod ports;
mod programs;
mod services;
mod setup;
mod signals;
mod state_dir;
mod status;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    // The parser must find a process without threads and is of no use for anything else, so it comes first.
    if first.as_deref().is_some_and(|word| word == extract::protocol::COMMAND) {
        return extract::child::main(arguments);
    }
    if let Some(service) = first.as_deref().and_then(services::find) {
        return parent::follow().map_or_else(|code| code, |()| service(arguments.collect::<Vec<OsString>>()));
    }
    commands::main()
}
