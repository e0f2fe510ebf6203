//! The pinned PostgreSQL from a shell, for development: `ragmux-postgres shared cargo sqlx prepare`.
//!
//! With a command, runs it with `DATABASE_URL` and `TEST_DATABASE_URL` set and PostgreSQL's programs first on the path,
//! and ends with its exit code. Without one, prints the URL and keeps the server up until standard input ends.

use std::ffi::OsString;
use std::io::{Write as _, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use config::Secret;
use ragmux_pgserver::{Cluster, ClusterOptions, Home, Installation, Progress, SharedCluster};
use tokio::process::Command;

/// The pinned PostgreSQL 16 with pgvector.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Join the throwaway server that the tests of this checkout share.
    Shared {
        /// Another folder than `ragmux-test-pg` in the target folder.
        #[arg(long)]
        dir: Option<PathBuf>,
        #[command(flatten)]
        job: Job,
    },
    /// Run a server of its own, whose data is kept.
    Own {
        /// The state folder.
        #[arg(long)]
        dir: PathBuf,
        /// The port on 127.0.0.1; a free one if not given.
        #[arg(long)]
        port: Option<u16>,
        #[command(flatten)]
        job: Job,
    },
    /// Only fetch and unpack the programs, and print where they are.
    Fetch {
        /// The folder to unpack below.
        parent: PathBuf,
    },
    /// Stop what a killed process left running in a state folder, and delete its database.
    Reset {
        /// The state folder.
        #[arg(long)]
        dir: PathBuf,
    },
}

#[derive(Args)]
struct Job {
    /// The command to run, with its arguments.
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse().mode).await {
        Ok(code) => code,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(mode: Mode) -> anyhow::Result<ExitCode> {
    let progress = |step: Progress| say(&step.to_string());
    match mode {
        Mode::Shared { dir, job } => {
            let cluster = match dir {
                Some(dir) => SharedCluster::acquire_in(&dir).await?,
                None => SharedCluster::acquire().await?,
            };
            serve(&job, cluster.url(), &cluster.program("psql")).await
        }
        Mode::Own { dir, port, job } => {
            let home = Home::open(&dir)?;
            home.notice().as_deref().into_iter().for_each(say);
            let installation = Installation::ensure(&home, &progress).await?;
            let mut options = ClusterOptions::default();
            options.port = port;
            let cluster = Cluster::open(&installation, home.dir(), options).await?;
            let outcome = serve(&job, cluster.url(), &installation.program("psql")).await;
            cluster.stop().await?;
            outcome
        }
        Mode::Fetch { parent } => {
            let installation = Installation::ensure_in(&parent, &progress).await?;
            writeln!(stdout(), "{}", installation.dir().display())?;
            Ok(ExitCode::SUCCESS)
        }
        Mode::Reset { dir } => {
            Home::open(&dir)?.remove().await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn serve(job: &Job, url: &Secret, psql: &Path) -> anyhow::Result<ExitCode> {
    let url = url.expose();
    let Some((program, arguments)) = job.command.split_first() else {
        writeln!(stdout(), "{url}")?;
        // The runtime has nothing else to do meanwhile.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        return Ok(ExitCode::SUCCESS);
    };
    let before = psql.parent().map(Path::to_owned);
    let after = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(before.into_iter().chain(std::env::split_paths(&after)))?;
    let mut command = Command::new(program);
    command.args(arguments).env("DATABASE_URL", url).env("TEST_DATABASE_URL", url).env("PATH", path);
    let status = command.status().await.with_context(|| format!("{} cannot be run", program.display()))?;
    Ok(exit_code(status))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// A line for the person at the terminal. When nobody can read it there is nobody to tell.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
