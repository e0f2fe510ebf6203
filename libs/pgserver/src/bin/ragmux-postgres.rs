//! The pinned PostgreSQL from a shell, for development: `ragmux-postgres shared cargo sqlx prepare`.
//!
//! With a command, runs it with `DATABASE_URL` and `TEST_DATABASE_URL` set and PostgreSQL's programs first on the path,
//! and ends with its exit code. Without one, prints the URL and keeps the server up until standard input ends or Ctrl-C.

use std::ffi::OsString;
use std::io::{Write as _, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use config::Secret;
use ragmux_pgserver::{Cluster, ClusterOptions, Home, Installation, PgServerError, Progress, SharedCluster};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// The exit code of a program that Ctrl-C ended, as shells count it.
const INTERRUPTED: u8 = 130;

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
    // From here on Ctrl-C is an event to act upon and does not end the process.
    let mut interrupt = signal(SignalKind::interrupt())?;
    match mode {
        Mode::Shared { dir, job } => {
            let joining = async {
                match dir {
                    Some(dir) => SharedCluster::acquire_in(&dir).await,
                    None => SharedCluster::acquire().await,
                }
            };
            let Some(cluster) = unless(&mut interrupt, joining).await else { return Ok(INTERRUPTED.into()) };
            let cluster = cluster?;
            serve(&job, cluster.url(), &cluster.program("psql"), &mut interrupt).await
        }
        Mode::Own { dir, port, job } => {
            let home = Home::open(&dir)?;
            home.notice().as_deref().into_iter().for_each(say);
            let starting = async {
                let installation = Installation::ensure(&home, &progress).await?;
                let mut options = ClusterOptions::default();
                options.port = port;
                let cluster = Cluster::open(&installation, home.dir(), options).await?;
                Ok::<_, PgServerError>((cluster, installation.program("psql")))
            };
            let Some(started) = unless(&mut interrupt, starting).await else { return Ok(INTERRUPTED.into()) };
            let (cluster, psql) = started?;
            let outcome = serve(&job, cluster.url(), &psql, &mut interrupt).await;
            cluster.stop().await?;
            outcome
        }
        Mode::Fetch { parent } => {
            let fetching = Installation::ensure_in(&parent, &progress);
            let Some(installation) = unless(&mut interrupt, fetching).await else { return Ok(INTERRUPTED.into()) };
            let installation = installation?;
            writeln!(stdout(), "{}", installation.dir().display())?;
            Ok(ExitCode::SUCCESS)
        }
        Mode::Reset { dir } => {
            Home::open(&dir)?.remove().await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The outcome of the work, or nothing when Ctrl-C came first. Dropping the work then stops a server it was starting.
async fn unless<T>(interrupt: &mut Signal, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        outcome = work => Some(outcome),
        _ = interrupt.recv() => None,
    }
}

async fn serve(job: &Job, url: &Secret, psql: &Path, interrupt: &mut Signal) -> anyhow::Result<ExitCode> {
    let url = url.expose();
    let Some((program, arguments)) = job.command.split_first() else {
        writeln!(stdout(), "{url}")?;
        until_told_to_end(interrupt).await?;
        return Ok(ExitCode::SUCCESS);
    };
    let before = psql.parent().map(Path::to_owned);
    let after = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(before.into_iter().chain(std::env::split_paths(&after)))?;
    let mut command = Command::new(program);
    command.args(arguments).env("DATABASE_URL", url).env("TEST_DATABASE_URL", url).env("PATH", path);
    let mut child = command.spawn().with_context(|| format!("{} cannot be run", program.display()))?;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(exit_code(status?)),
            // The terminal sends it to the command as well, which then ends or has its reasons.
            _ = interrupt.recv() => {}
        }
    }
}

/// Waits for the end of standard input or Ctrl-C.
async fn until_told_to_end(interrupt: &mut Signal) -> anyhow::Result<()> {
    let (ended, input_end) = oneshot::channel();
    // Reading a terminal cannot be given up, so it is left to a thread that ends with the process.
    std::thread::spawn(move || ended.send(std::io::copy(&mut std::io::stdin(), &mut std::io::sink())));
    tokio::select! {
        ended = input_end => ended?.map(drop).map_err(Into::into),
        _ = interrupt.recv() => Ok(()),
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// A line for the person at the terminal. When nobody can read it there is nobody to tell.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
