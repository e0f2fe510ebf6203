//! The scripted upstream as a process of its own, so that its work is not the client's.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use upstream::{Behaviour, Counters, Options, STOP_GRACE, Script};

use crate::arguments::Upstream;
use crate::http::Connection;
use crate::report::say;
use crate::traffic::PATH;

const START_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const LISTENS: &str = "upstream listens on ";

/// The process itself.
///
/// # Errors
/// When the address cannot be bound.
pub(crate) async fn run(arguments: Upstream) -> anyhow::Result<()> {
    let listener = TcpListener::bind(arguments.listen).await.context("the upstream cannot listen")?;
    let options = Options { script: true, any_model: true, log_calls: 0, ..Options::default() };
    let handle = upstream::serve(listener, options)?;
    say(&format!("{LISTENS}{}", handle.address()));
    if arguments.with_parent {
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    } else {
        tokio::signal::ctrl_c().await?;
    }
    handle.stop(STOP_GRACE).await;
    Ok(())
}

/// A running upstream. It ends with the value, and with this process.
#[derive(Debug)]
pub(crate) struct UpstreamProcess {
    child: Child,
    address: SocketAddr,
}

impl UpstreamProcess {
    /// Starts this program again as an upstream.
    ///
    /// # Errors
    /// When it does not come up.
    pub(crate) async fn start(listen: SocketAddr) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["upstream", "--with-parent", "--listen", &listen.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the upstream cannot be started")?;
        let mut line = String::new();
        let output = child.stdout.take().context("the upstream has no output")?;
        let mut output = BufReader::new(output);
        timeout(START_LIMIT, output.read_line(&mut line)).await.context("the upstream does not come up")??;
        let address = line.trim().strip_prefix(LISTENS).and_then(|address| address.parse().ok());
        let address = address.with_context(|| format!("the upstream did not come up: {line}"))?;
        Ok(Self { child, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// What every chat is answered from now on.
    ///
    /// # Errors
    /// When the upstream is gone.
    pub(crate) async fn answer(&self, behaviour: Behaviour) -> anyhow::Result<()> {
        self.control("DELETE", "/script", "").await?;
        let script = Script { path: PATH.to_owned(), queue: Vec::new(), default: Some(behaviour) };
        self.control("POST", "/script", &serde_json::to_string(&script)?).await?;
        Ok(())
    }

    /// What it has counted since the last change of its answer.
    ///
    /// # Errors
    /// When the upstream is gone.
    pub(crate) async fn counters(&self) -> anyhow::Result<Counters> {
        Ok(serde_json::from_slice(&self.control("GET", "/script/counters", "").await?)?)
    }

    async fn control(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Vec<u8>> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut answer = Vec::new();
        let mut connection = Connection::new(self.address);
        let call = connection.call(request.as_bytes(), |piece| answer.extend_from_slice(piece));
        let head = timeout(ANSWER_LIMIT, call).await.context("the upstream does not answer")??;
        anyhow::ensure!(
            head.status == 200,
            "the upstream refused {method} {path}: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(answer)
    }
}
