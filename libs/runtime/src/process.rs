//! What every `main` does: read the settings, set up the log, run the service until it is told to stop, and turn the
//! outcome into an exit code.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use config::{Env, Logging};

use crate::healthcheck::ask;
use crate::startup::StartError;
use crate::stop::{Signals, Stop};

const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

/// The exit code for settings or arguments that cannot be used.
const USAGE: u8 = 2;

/// How long blocking work may hold up the end of a process whose stages are done.
const LEFTOVERS: Duration = Duration::from_secs(1);

/// Which service a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name: `edge`, `ingestion-worker` or `admin`.
    pub name: &'static str,
    /// The version of its build.
    pub version: &'static str,
}

/// The settings of a service, as far as every `main` needs to know them.
pub trait Settings: Send + Sized + 'static {
    /// Reads all settings. Mistakes are noted in `env`.
    fn read(env: &mut Env) -> Self;

    /// How to log.
    fn logging(&self) -> &Logging;

    /// The HTTP listener that answers `/healthz`.
    fn health_address(&self) -> SocketAddr;
}

/// A process that is set up and about to run its service.
#[derive(Clone, Debug)]
pub struct Process {
    /// The service.
    pub service: Service,
    /// When to end.
    pub stop: Stop,
}

/// The `main` of a service without commands of its own: runs it, or does what `--healthcheck` or `--version` asks.
/// `arguments` are those after the program's name (or after the name of the service, in a program that has several).
pub fn main<S, F>(
    service: Service,
    arguments: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(Process, S) -> F,
) -> ExitCode
where
    S: Settings,
    F: Future<Output = anyhow::Result<()>>,
{
    ExitCode::from(code_of_main(service, arguments, run))
}

/// Runs a service, or one of its commands, to its end.
///
/// Settings that cannot be used are all reported on standard error, and the code is 2; when `run` fails, its error is
/// reported there in one sentence, and the code is 1. [`StartError::Stopped`] counts as success.
pub fn start<S, F>(service: Service, run: impl FnOnce(Process, S) -> F) -> ExitCode
where
    S: Settings,
    F: Future<Output = anyhow::Result<()>>,
{
    ExitCode::from(code_of_start(service, run))
}

/// Asks the running process of the same environment whether it runs, for container engines.
pub fn healthcheck<S: Settings>(service: Service) -> ExitCode {
    ExitCode::from(code_of_healthcheck::<S>(service))
}

fn code_of_main<S, F>(
    service: Service,
    arguments: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(Process, S) -> F,
) -> u8
where
    S: Settings,
    F: Future<Output = anyhow::Result<()>>,
{
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let arguments: Vec<&str> = arguments.iter().map(|argument| argument.to_str().unwrap_or("?")).collect();
    match arguments.as_slice() {
        [] => code_of_start(service, run),
        ["--healthcheck"] => code_of_healthcheck::<S>(service),
        ["--version" | "-V"] => {
            tell(std::io::stdout(), &format!("{} {}", service.name, service.version));
            SUCCESS
        }
        _ => {
            complain(service, "takes --healthcheck, --version or no argument; its settings come from the environment");
            USAGE
        }
    }
}

fn code_of_start<S, F>(service: Service, run: impl FnOnce(Process, S) -> F) -> u8
where
    S: Settings,
    F: Future<Output = anyhow::Result<()>>,
{
    let Some((settings, warnings)) = read::<S>(service) else { return USAGE };
    match try_start(service, settings, &warnings, run) {
        Ok(()) => SUCCESS,
        Err(error) if matches!(error.downcast_ref(), Some(StartError::Stopped)) => SUCCESS,
        Err(error) => {
            complain(service, &format!("{error:#}"));
            FAILURE
        }
    }
}

fn code_of_healthcheck<S: Settings>(service: Service) -> u8 {
    let Some((settings, _)) = read::<S>(service) else { return FAILURE };
    match ask(settings.health_address()) {
        Ok(()) => SUCCESS,
        Err(problem) => {
            complain(service, &problem);
            FAILURE
        }
    }
}

fn read<S: Settings>(service: Service) -> Option<(S, Vec<String>)> {
    let mut env = Env::process();
    let settings = S::read(&mut env);
    match env.finish() {
        Ok(findings) => Some((settings, findings.warnings)),
        Err(mistakes) => {
            complain(service, &mistakes.to_string());
            None
        }
    }
}

fn try_start<S, F>(
    service: Service,
    settings: S,
    warnings: &[String],
    run: impl FnOnce(Process, S) -> F,
) -> anyhow::Result<()>
where
    S: Settings,
    F: Future<Output = anyhow::Result<()>>,
{
    telemetry::init(settings.logging(), service.name)?;
    log_panics();
    // The one TLS provider of the process. An error says that there is one already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let stop = Stop::new();
        // Made before anything waits, so that a process that waits for its database can be stopped in order.
        let signals = Signals::new()?;
        let signals = tokio::spawn(signals.pass_on(stop.clone()));
        tracing::info!(version = service.version, pid = std::process::id(), "starting");
        let outcome = run(Process { service, stop }, settings).await;
        signals.abort();
        outcome
    });
    runtime.shutdown_timeout(LEFTOVERS);
    outcome
}

/// Logs where a task panicked. What it said is left out: messages of panics quote the data at hand.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|location| format!("{}:{}", location.file(), location.line()));
        tracing::error!(place = place.unwrap_or_default(), "a task panicked");
    }));
}

/// Every connection is a file; many systems start processes with room for 1024 only.
fn raise_file_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, "the limit of open files could not be raised");
    }
}

fn complain(service: Service, problem: &str) {
    tell(std::io::stderr(), &format!("{}: {problem}", service.name));
}

/// Writes a line for a person, who may have gone away.
fn tell(mut output: impl Write, line: &str) {
    let _ = writeln!(output, "{line}");
}
