//! What can be said on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::scale::Scale;
use crate::scenarios::Scenario;

/// Measures ragmux against its bars, and other servers on the same work.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the edge: starts a PostgreSQL, the edge beside this program and an upstream, and prints every figure.
    Edge(Run),
    /// Measure another OpenAI-compatible server, which must be set up to answer the model from the upstream's address.
    Peer(Peer),
    /// Measure the document queue alone, on a PostgreSQL of its own.
    Queue(Queue),
    /// Measure how good retrieval is on judged collections.
    Quality(Quality),
    /// Measure retrieval in a large store, on a PostgreSQL of its own.
    Search(Search),
    /// Serve as the upstream alone.
    Upstream(Upstream),
    /// Compare the text of PDFs with what poppler's pdftotext reads, file by file.
    Text(Text),
}

/// How to measure.
#[derive(Clone, Debug, Args)]
pub(crate) struct Run {
    /// Only these scenarios.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub(crate) only: Vec<Scenario>,
    /// How long to take.
    #[arg(long, value_enum, default_value = "full")]
    pub(crate) scale: ScaleName,
    /// The same as `--scale quick`.
    #[arg(long, conflicts_with = "scale")]
    pub(crate) quick: bool,
    /// Where to write the results as JSON.
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// For how many seconds the transaction beside the admissions has been open.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) open_transaction: Option<u64>,
    /// Let the system place the processes, also where they otherwise get processors of their own.
    #[arg(long)]
    pub(crate) no_pins: bool,
    /// Run everything at this priority, from -20 (before all others; takes root) to 19.
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub(crate) nice: Option<i32>,
}

/// How long a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScaleName {
    /// What figures are reported from.
    Full,
    /// A few minutes, for work on one part.
    Quick,
    /// A moment, to see that it runs at all.
    Moment,
}

impl Run {
    pub(crate) fn scale(&self) -> Scale {
        let mut scale = match self.scale {
            _ if self.quick => Scale::quick(),
            ScaleName::Full => Scale::full(),
            ScaleName::Quick => Scale::quick(),
            ScaleName::Moment => Scale::moment(),
        };
        if let Some(seconds) = self.open_transaction {
            scale.open_transaction = Duration::from_secs(seconds);
        }
        scale
    }

    /// Whether a scenario is asked for.
    pub(crate) fn wants(&self, scenario: Scenario) -> bool {
        self.only.is_empty() || self.only.contains(&scenario)
    }
}

/// Another server.
#[derive(Clone, Debug, Args)]
pub(crate) struct Peer {
    /// Its base URL, such as `http://127.0.0.1:4000/v1`.
    #[arg(long)]
    pub(crate) base_url: url::Url,
    /// A key it takes.
    #[arg(long, default_value = "none")]
    pub(crate) api_key: String,
    /// The model name that it answers from the upstream.
    #[arg(long)]
    pub(crate) model: String,
    /// Its process, to read CPU and memory of.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// Where the upstream listens: the base URL to give the server is `http://ADDRESS/v1`.
    #[arg(long, default_value = "127.0.0.1:9199")]
    pub(crate) upstream_listen: SocketAddr,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// The queue.
#[derive(Clone, Debug, Args)]
pub(crate) struct Queue {
    /// Documents that are done.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(i32).range(0..=100_000_000))]
    pub(crate) finished: i32,
    /// Documents that are worked on for each figure.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(i32).range(1..=10_000_000))]
    pub(crate) documents: i32,
    /// Stores they are in.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    pub(crate) stores: i32,
    /// For how many seconds the transaction beside the queue is open.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) open_transaction: u64,
    /// Where to write the results as JSON.
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

/// Stores to search.
#[derive(Clone, Debug, Args)]
pub(crate) struct Search {
    /// Chunks of the large store.
    #[arg(long, default_value_t = 100_000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(100..=10_000_000))]
    pub(crate) chunks: usize,
    /// Questions for each figure.
    #[arg(long, default_value_t = 200, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub(crate) queries: usize,
    /// What the vectors are generated from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Vectors that are compared one by one at most, if not what the product says.
    #[arg(long)]
    pub(crate) exact_rows: Option<i64>,
    /// Where to write the results as JSON.
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

/// The PDFs to compare.
#[derive(Clone, Debug, Args)]
pub(crate) struct Text {
    /// PDFs, or folders of them.
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// The program that parses: `ragmux`, or the ingestion worker by itself.
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// Fail if the mean word recall is below.
    #[arg(long, value_name = "SHARE")]
    pub(crate) at_least: Option<f64>,
}

/// Judged collections and who embeds them.
#[derive(Clone, Debug, Args)]
pub(crate) struct Quality {
    /// Folders in the form of BEIR: corpus.jsonl, queries.jsonl and qrels/test.tsv.
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// An OpenAI-compatible server that embeds, such as `http://127.0.0.1:8080/v1`; without one the demonstration's
    /// vectors are used, which know words and nothing of their meaning.
    #[arg(long, value_name = "URL", requires = "embeddings_model")]
    pub(crate) embeddings_url: Option<url::Url>,
    /// Its model.
    #[arg(long, value_name = "NAME", requires = "embeddings_url")]
    pub(crate) embeddings_model: Option<String>,
    /// A key it takes.
    #[arg(long, value_name = "KEY", requires = "embeddings_url")]
    pub(crate) embeddings_key: Option<String>,
    #[command(flatten)]
    pub(crate) bars: Bars,
    /// Where to write the results as JSON.
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

/// What nDCG@10 has to be for the run to succeed, of every collection.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Bars {
    /// By words alone.
    #[arg(long, value_name = "SHARE")]
    pub(crate) lexical_at_least: Option<f64>,
    /// By vectors alone.
    #[arg(long, value_name = "SHARE")]
    pub(crate) vector_at_least: Option<f64>,
    /// By both.
    #[arg(long, value_name = "SHARE")]
    pub(crate) hybrid_at_least: Option<f64>,
}

/// The upstream.
#[derive(Clone, Debug, Args)]
pub(crate) struct Upstream {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:9199")]
    pub(crate) listen: SocketAddr,
    /// End when standard input does, as it does with the process that started this one.
    #[arg(long)]
    pub(crate) with_parent: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn run(arguments: &[&str]) -> Run {
        let parsed = Arguments::try_parse_from([&["ragmux-bench", "edge"], arguments].concat()).unwrap();
        let Command::Edge(run) = parsed.command else { panic!("not the edge") };
        run
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn scenarios_are_asked_for_by_name() {
        let some = run(&["--only", "latency,pairs", "--quick"]);
        assert!(some.wants(Scenario::Latency) && some.wants(Scenario::Pairs) && !some.wants(Scenario::Memory));
        assert!(run(&[]).wants(Scenario::Memory));
        assert_eq!(some.scale().rounds, Scale::quick().rounds);
        assert_eq!(run(&["--open-transaction", "7"]).scale().open_transaction, Duration::from_secs(7));
    }
}
