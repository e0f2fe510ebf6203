//! Joins the shared test PostgreSQL from a shell: `test_postgres [--dir DIR] [COMMAND [ARGUMENT…]]`.
//!
//! With a command, runs it with `DATABASE_URL` and `TEST_DATABASE_URL` set and ends with its exit code. Without one,
//! prints the URL and keeps the server up until standard input ends.

use std::env::ArgsOs;
use std::io::{Write as _, stdout};
use std::iter::Peekable;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use anyhow::Context as _;
use ragmux_pgserver::SharedCluster;
use tokio::process::Command;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os().peekable();
    arguments.next();
    let cluster = match dir(&mut arguments)? {
        Some(dir) => SharedCluster::acquire_in(&dir).await?,
        None => SharedCluster::acquire().await?,
    };
    let url = cluster.url().expose();
    let Some(program) = arguments.next() else {
        writeln!(stdout(), "{url}")?;
        // The runtime has nothing else to do meanwhile.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new(&program);
    command.args(arguments).env("DATABASE_URL", url).env("TEST_DATABASE_URL", url);
    let status = command.status().await.with_context(|| format!("{} cannot be run", program.display()))?;
    Ok(exit_code(status))
}

fn dir(arguments: &mut Peekable<ArgsOs>) -> anyhow::Result<Option<PathBuf>> {
    if arguments.next_if(|argument| argument == "--dir").is_none() {
        return Ok(None);
    }
    arguments.next().map(|dir| Some(PathBuf::from(dir))).context("--dir needs a folder")
}

fn exit_code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
