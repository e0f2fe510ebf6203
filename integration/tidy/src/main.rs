//! `ragmux-tidy check` reports breaches of the workspace's rules; `ragmux-tidy sqlx` keeps `.sqlx` fresh.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tidy::{Finding, Workspace, query_data};

/// The rules of this workspace that no compiler checks.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Report every breach of a rule; the exit code is 1 when there is one.
    Check,
    /// Compare the committed .sqlx with a database made from today's migrations.
    Sqlx(Sqlx),
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Sqlx {
    /// Report what is missing, stale or superfluous; the exit code is 1 when there is something.
    #[arg(long)]
    check: bool,
    /// Replace the committed data.
    #[arg(long)]
    write: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let command = Arguments::parse().command;
    let workspace = Workspace::read()?;
    let findings = match command {
        Command::Check => tidy::check(&workspace)?,
        Command::Sqlx(Sqlx { write: true, .. }) => {
            let statements = query_data::write(&workspace).await?;
            say(&format!("{statements} statements are described in .sqlx"));
            Vec::new()
        }
        Command::Sqlx(_) => query_data::check(&workspace).await?,
    };
    Ok(report(&findings))
}

fn report(findings: &[Finding]) -> ExitCode {
    for finding in findings {
        say(&finding.to_string());
    }
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A line for the person at the terminal. When nobody can read it there is nobody to tell.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
