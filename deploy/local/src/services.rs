//! The processes that this program can be.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;
use config::{Env, Logging};
use runtime::Settings as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::guard;
use crate::ports::{DEFAULT_BASE, Ports};
use crate::terminal::complain;

/// The `main` of a process, given the arguments after its name.
pub(crate) type Main = fn(Vec<OsString>) -> ExitCode;

/// The process of that name.
pub(crate) fn find(name: &OsStr) -> Option<Main> {
    match name.to_str()? {
        "edge" => Some(edge::main),
        "ingestion-worker" => Some(ingestion_worker::main),
        "admin" => Some(admin::main),
        "upstream" => Some(upstream_main),
        guard::COMMAND => Some(guard::main),
        _ => None,
    }
}

/// The names of all settings that the services read.
pub(crate) fn settings() -> BTreeSet<&'static str> {
    // Read from nothing: what they make of it does not matter.
    let mut env = Env::of::<&str, &str>([]);
    edge::Settings::read(&mut env);
    ingestion_worker::Config::read(&mut env);
    admin::Settings::read(&mut env);
    env.keys()
}

/// The demonstration model: an OpenAI-compatible server without a model.
#[derive(Parser)]
#[command(name = "ragmux upstream", version)]
struct Arguments {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = usual_address())]
    listen: SocketAddr,
}

fn usual_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, Ports::from_base(DEFAULT_BASE).upstream().port()).into()
}

fn upstream_main(arguments: Vec<OsString>) -> ExitCode {
    let arguments = Arguments::parse_from(std::iter::once("ragmux upstream".into()).chain(arguments));
    match run_upstream(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("upstream: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run_upstream(arguments: &Arguments) -> anyhow::Result<()> {
    let mut env = Env::process();
    let logging = Logging::read(&mut env);
    env.finish()?;
    telemetry::init(&logging, "upstream")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let told = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        Ok(upstream::run(arguments.listen, upstream::Options::default(), told).await?)
    })
}
