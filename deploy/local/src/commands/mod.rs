//! The launcher's commands.

mod down;
mod reset;
mod running;
mod status;
mod summary;
mod up;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Arguments, Command};
use crate::ports::Ports;
use crate::state_dir::StateDir;
use crate::terminal::complain;

/// Does what the command line says.
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("ragmux: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    // The one TLS provider of the process. An error says that there is one already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = StateDir::at(&arguments.state_dir)?;
    // One thread, the main one: children are tied to the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match arguments.command.unwrap_or(Command::Up(arguments.up)) {
            Command::Up(up) => up::run(dir, Ports::from_base(arguments.port_base), &up).await,
            Command::Status { json } => status::run(&dir, json),
            Command::Down => down::run(&dir).await,
            Command::Reset { yes } => reset::run(&dir, yes).await,
        }
    })
}
