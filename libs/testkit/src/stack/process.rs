//! One service as a process of the shipped binary.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::port::quiet_port;
use crate::wait::{DEADLINE, PAUSE};

/// Which service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The API for LLM clients.
    Edge,
    /// The document worker.
    Worker,
    /// The admin service.
    Admin,
}

impl Role {
    fn command(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Worker => "ingestion-worker",
            Self::Admin => "admin",
        }
    }

    fn listens(self) -> [&'static str; 2] {
        match self {
            Self::Edge => ["EDGE_LISTEN", "HEALTH_GRPC_LISTEN"],
            Self::Worker => ["WORKER_LISTEN", "HEALTH_GRPC_LISTEN"],
            Self::Admin => ["ADMIN_LISTEN", "ADMIN_GRPC_LISTEN"],
        }
    }
}

/// A process that was started.
pub struct Process {
    role: Role,
    child: Child,
    http_port: u16,
    grpc_port: u16,
    log: PathBuf,
}

impl Process {
    pub(super) async fn start(
        role: Role,
        number: usize,
        folder: &Path,
        mut environment: BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        let (http_port, grpc_port) = (quiet_port()?, quiet_port()?);
        for (key, port) in role.listens().into_iter().zip([http_port, grpc_port]) {
            environment.insert(key.to_owned(), format!("127.0.0.1:{port}"));
        }
        let log = folder.join(format!("{}-{number}.log", role.command()));
        let output = File::create(&log)?;
        let child = Command::new(binary()?)
            .arg(role.command())
            .env_clear()
            .envs(environment)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .context("the service cannot be started")?;
        Ok(Self { role, child, http_port, grpc_port, log })
    }

    /// Which service it is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Where it serves HTTP.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http_port)
    }

    /// Where it serves gRPC.
    #[must_use]
    pub fn grpc_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc_port)
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Everything it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines it has logged.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(25)..).unwrap_or_default().join("\n")
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Status and body of `/readyz`; `None` while nothing listens.
    ///
    /// # Errors
    /// When the answer is not JSON.
    pub async fn readiness(&self, http: &reqwest::Client) -> anyhow::Result<Option<(u16, serde_json::Value)>> {
        match http.get(format!("{}/readyz", self.url())).send().await {
            Ok(answer) => {
                let status = answer.status().as_u16();
                Ok(Some((status, serde_json::from_slice(&answer.bytes().await?)?)))
            }
            Err(_) => Ok(None),
        }
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// When it ends or does not become so; the end of its log is in the message.
    pub async fn ready(&mut self, http: &reqwest::Client) -> anyhow::Result<()> {
        let end = Instant::now() + DEADLINE;
        loop {
            if self.readiness(http).await?.is_some_and(|(status, _)| status == 200) {
                return Ok(());
            }
            let ended = self.child.try_wait()?.map(|status| format!("ended with {status}"));
            if let Some(why) = ended.or_else(|| (Instant::now() >= end).then(|| "is not ready".to_owned())) {
                anyhow::bail!("{:?} {why}:\n{}", self.role, self.log_tail());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).context("it has ended")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills it without a word, and waits until it is gone.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// When it has not ended in time.
    pub async fn stop(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended(patience).await
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// When it has not ended in time.
    pub async fn ended(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let ended = timeout(patience, self.child.wait()).await;
        Ok(ended.with_context(|| format!("{:?} did not end:\n{}", self.role, self.log_tail()))??)
    }
}

/// The shipped binary, which cargo has built beside the program that is running, or one folder above a test.
fn binary() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let found = program.ancestors().skip(1).take(2).map(|folder| folder.join("ragmux")).find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "the program ragmux is not beside {}: `cargo test --workspace` builds it for tests, `cargo build --release` \
             for the benchmark",
            program.display()
        )
    })
}
