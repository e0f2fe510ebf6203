//! The server's main process as seen from outside: its pid file, whether it lives, how it is stopped.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::PgServerError;

/// How often a state is looked at while it is waited for.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// How long a server that was told to drop everything may take, and again after it was killed.
const FORCED_STOP_DEADLINE: Duration = Duration::from_secs(10);

/// What `postmaster.pid` says (the lines are those of PostgreSQL's `miscadmin.h`, `LOCK_FILE_LINE_…`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidFile {
    pub(crate) pid: u32,
    pub(crate) port: Option<u16>,
    pub(crate) is_ready: bool,
}

impl PidFile {
    /// The pid file of a data folder, if there is a readable one.
    pub(crate) fn read(data: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(data.join("postmaster.pid")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let pid = lines.next()?.trim().parse().ok().filter(|pid| *pid > 1)?;
        let port = lines.nth(2).and_then(|port| port.trim().parse().ok());
        let is_ready = lines.nth(3).is_some_and(|status| status.trim() == "ready");
        Some(Self { pid, port, is_ready })
    }
}

/// The server that runs on a data folder, whoever started it.
pub(crate) fn running(data: &Path) -> Option<PidFile> {
    PidFile::read(data).filter(|found| is_ours(found.pid, data))
}

/// Whether the process is alive and was started on this data folder. A number alone proves nothing: it may have been
/// given to another process since. A process that has ended and was not collected has no command line any more.
fn is_ours(pid: u32, data: &Path) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    line.split(|byte| *byte == 0).any(|argument| argument == data.as_os_str().as_encoded_bytes())
}

/// Asks the server for a fast shutdown: sessions are cut, the data is written out. Does not wait.
pub(crate) fn request_stop(pid: u32, data: &Path) {
    signal(pid, data, Signal::INT);
}

/// Stops the server: fast, then by dropping everything, then by killing it. Returns when it is gone.
pub(crate) async fn stop(pid: u32, data: &Path, deadline: Duration) -> Result<(), PgServerError> {
    let steps = [(Signal::INT, deadline), (Signal::QUIT, FORCED_STOP_DEADLINE), (Signal::KILL, FORCED_STOP_DEADLINE)];
    for (signal_to_send, patience) in steps {
        signal(pid, data, signal_to_send);
        let give_up = Instant::now() + patience;
        while is_ours(pid, data) {
            if Instant::now() >= give_up {
                tracing::warn!(pid, waited_s = patience.as_secs(), "postgresql does not stop, pressing harder");
                break;
            }
            sleep(POLL).await;
        }
        if !is_ours(pid, data) {
            return Ok(());
        }
    }
    Err(PgServerError::StopFailed { pid })
}

fn signal(pid: u32, data: &Path, signal: Signal) {
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(target) = target.filter(|_| is_ours(pid, data)) else { return };
    if let Err(error) = kill_process(target, signal) {
        tracing::debug!(pid, %error, "postgresql could not be signalled");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_tells_port_and_readiness() {
        let text = "4711\n/data\n1700000000\n5433\n\n127.0.0.1\n  123 456\nready   \n";
        assert_eq!(PidFile::parse(text), Some(PidFile { pid: 4711, port: Some(5433), is_ready: true }));
        let starting = text.replace("ready   ", "starting");
        assert_eq!(PidFile::parse(&starting), Some(PidFile { pid: 4711, port: Some(5433), is_ready: false }));
    }

    #[test]
    fn a_half_written_or_hostile_pid_file_names_no_process() {
        assert_eq!(PidFile::parse(""), None);
        assert_eq!(PidFile::parse("-1\n/data\n"), None);
        assert_eq!(PidFile::parse("1\n/data\n"), None);
        assert_eq!(PidFile::parse("4711\n"), Some(PidFile { pid: 4711, port: None, is_ready: false }));
    }

    #[test]
    fn another_process_under_a_reused_number_is_not_taken_for_the_server() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("postmaster.pid"), format!("{}\n/x\n1\n5433\n", std::process::id())).unwrap();
        assert_eq!(running(dir.path()), None);
    }
}
