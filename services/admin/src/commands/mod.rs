//! The commands of the program.

mod migrate;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use runtime::Service;

use crate::config::Settings;

/// The service, as health, logs and the list of instances name it.
pub(crate) const SERVICE: Service = Service { name: "admin", version: env!("CARGO_PKG_VERSION") };

/// The admin service. Its settings come from the environment.
#[derive(Parser)]
#[command(name = "ragmux-admin", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Ask the running service of the same environment whether it runs.
    #[arg(long)]
    healthcheck: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Migrate the database, then serve (the default).
    Serve,
    /// Migrate the database and exit.
    Migrate(migrate::Options),
}

/// The program, given the arguments after its name, or after the name of the service in a program that has several.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let named = std::iter::once(OsString::from("ragmux-admin")).chain(arguments);
    let arguments = match Arguments::try_parse_from(named) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nobody may be there to read it.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match arguments.command {
        _ if arguments.healthcheck => runtime::healthcheck::<Settings>(SERVICE),
        Some(Command::Migrate(options)) => {
            runtime::start(SERVICE, |process, settings| migrate::run(process, settings, options))
        }
        None | Some(Command::Serve) => runtime::start(SERVICE, serve::run),
    }
}
