//! Stops the database when the launcher was killed.
//!
//! PostgreSQL cannot be told to end with its parent. So a guard holds the reading end of a pipe whose writing end the
//! launcher holds, and every service too, as its standard input: the end of the pipe means that all of them are gone.
//! After an orderly stop there is no database left to stop then.

use std::ffi::OsString;
use std::io::{PipeWriter, pipe, stdin};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use pgserver::{Cluster, PgServerError};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::programs::OWN_PROGRAM;
use crate::terminal::complain;

/// The word that makes this program a guard.
pub(crate) const COMMAND: &str = "guard";

/// With an orderly stop it has nothing to do.
const END: Duration = Duration::from_secs(10);

/// The running guard, seen from the launcher.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    line: PipeWriter,
}

impl Guard {
    /// Starts a guard for the database in `dir`.
    pub(crate) fn start(dir: &Path) -> anyhow::Result<Self> {
        let (end, line) = pipe().context("no pipe can be made")?;
        let child = Command::new(OWN_PROGRAM)
            .arg0("ragmux")
            .arg(COMMAND)
            .arg(dir)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(end))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Neither Ctrl-C nor a closed terminal is for it.
            .process_group(0)
            .spawn()
            .context("the guard of the database cannot be started")?;
        Ok(Self { child, line })
    }

    /// The writing end, for the standard input of a service.
    pub(crate) fn line_end(&self) -> anyhow::Result<PipeWriter> {
        self.line.try_clone().context("the guard's pipe cannot be shared")
    }

    /// Lets the guard go, after everything else has stopped.
    pub(crate) async fn end(mut self) {
        drop(self.line);
        if timeout(END, self.child.wait()).await.is_err() {
            // It hangs on something; the next start stops a server that is left.
            let _ = self.child.kill().await;
        }
    }
}

/// The guard's own process.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    let [dir] = arguments.as_slice() else { return ExitCode::from(2) };
    let dir = PathBuf::from(dir);
    // An error means that the pipe is gone as well.
    let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(Cluster::stop_orphan(&dir)) {
        // A new launcher has taken the database over.
        Ok(_) | Err(PgServerError::AlreadyRunning { .. }) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
