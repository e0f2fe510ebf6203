//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::ports::{DEFAULT_BASE, HIGHEST_BASE};

/// Ragmux, all of it: a private PostgreSQL, the three services, a demonstration model and sample documents.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "The services by themselves: ragmux edge, ragmux ingestion-worker, ragmux admin, ragmux upstream.\n\
                  Their settings come from the environment; see .env.example."
)]
pub(crate) struct Arguments {
    /// Where the data and the state of this installation are.
    #[arg(long, global = true, default_value = ".ragmux", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
    /// The first of eight ports on 127.0.0.1: N admin, N+1 edge, N+2 admin gRPC, N+3 ingestion-worker, N+4 and N+5
    /// health of edge and worker, N+6 demonstration model, N+7 PostgreSQL.
    #[arg(long, global = true, default_value_t = DEFAULT_BASE, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(HIGHEST_BASE)))]
    pub(crate) port_base: u16,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) up: Up,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Start everything and stay until Ctrl-C; this is what happens without a command.
    Up(Up),
    /// Show what runs, where, and with which keys.
    Status {
        /// One JSON object, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Stop the running copy and wait until it is gone.
    Down,
    /// Remove everything that was made, the database included.
    Reset {
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Up {
    /// Load no sample documents.
    #[arg(long)]
    pub(crate) no_sample: bool,
    /// Which models to connect: `auto` takes OpenAI when OPENAI_API_KEY is set, `demo` the demonstration model. Without
    /// it a terminal is asked, once.
    #[arg(long, value_name = "WHICH")]
    pub(crate) upstream: Option<Upstream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Upstream {
    /// OpenAI when OPENAI_API_KEY is set, otherwise the demonstration model.
    Auto,
    /// The demonstration model.
    Demo,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from([&["ragmux"], arguments].concat())
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_words_of_the_readme_are_understood() {
        assert!(parse(&[]).unwrap().command.is_none());
        let parsed = parse(&["up", "--no-sample", "--upstream", "auto", "--port-base", "9000"]).unwrap();
        assert_eq!(parsed.port_base, 9000);
        assert!(matches!(parsed.command, Some(Command::Up(Up { no_sample: true, upstream: Some(Upstream::Auto) }))));
        assert!(matches!(parse(&["status", "--json"]).unwrap().command, Some(Command::Status { json: true })));
        assert!(matches!(
            parse(&["--state-dir", "x y", "reset", "--yes"]).unwrap().command,
            Some(Command::Reset { yes: true })
        ));
        assert!(parse(&["--no-sample"]).unwrap().up.no_sample);
    }

    #[test]
    fn ports_beyond_the_last_are_refused() {
        assert!(parse(&["--port-base", "65528"]).is_ok());
        for base in ["0", "65529", "x"] {
            assert!(parse(&["--port-base", base]).is_err(), "{base}");
        }
    }
}
