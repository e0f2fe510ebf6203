//! A state folder, free ports, and the program run on them.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take that takes seconds on a machine with nothing else to do.
const DEADLINE: Duration = Duration::from_secs(300);

const PAUSE: Duration = Duration::from_millis(50);

/// One installation.
pub(crate) struct Lab {
    dir: tempfile::TempDir,
    pub(crate) base: u16,
    environment: Vec<(String, String)>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        // Spaces in the path are part of every test.
        let dir = tempfile::Builder::new().prefix("ragmux lab ").tempdir().unwrap();
        Self { dir, base: free_ports(), environment: Vec::new() }
    }

    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.environment.push((key.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ragmux"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.args(["--state-dir", "state", "--port-base", &self.base.to_string()]);
        for key in ["DATABASE_URL", "OPENAI_API_KEY", "SECRET_KEY", "ADMIN_USER", "ADMIN_PASSWORD", "CARGO"] {
            command.env_remove(key);
        }
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs it to an end that is a failure; returns its words, which are one line.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert_eq!(words.lines().count(), 1, "{words}");
        words
    }

    /// Starts the program and lets it run.
    pub(crate) fn start(&self, arguments: &[&str]) -> Launcher<'_> {
        let output = self.dir.path().join("output");
        let file = fs::File::create(&output).unwrap();
        let mut command = self.command(arguments);
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Launcher { lab: self, child, output }
    }

    pub(crate) fn status(&self) -> Value {
        let output = self.run(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }
}

/// A running copy. A test that fails takes it down.
pub(crate) struct Launcher<'a> {
    lab: &'a Lab,
    child: Child,
    output: PathBuf,
}

impl Launcher<'_> {
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until its output has a text.
    pub(crate) fn until_says(&mut self, text: &str) {
        until(text, || {
            let output = self.output();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() || output.contains(text), "it ended: {output}");
            output.contains(text)
        });
    }

    /// Waits until it is ready; returns its status.
    pub(crate) fn ready(&mut self) -> Value {
        self.until_says("Ctrl-C stops everything");
        let status = self.lab.status();
        assert_eq!(status["state"], "ready", "{}", self.output());
        status
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; returns the exit code, which a killed process has none of.
    pub(crate) fn ended(mut self) -> Option<i32> {
        let mut code = None;
        until("the launcher's end", || match self.child.try_wait().unwrap() {
            Some(status) => {
                code = status.code();
                true
            }
            None => false,
        });
        code
    }
}

impl Drop for Launcher<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// Takes away what a test that failed half-way has left.
impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
        let _ = self.command(&["reset", "--yes"]).output();
    }
}

/// The processes that a status names.
pub(crate) fn pids(status: &Value) -> Vec<i32> {
    let services = status["services"].as_array().unwrap();
    services.iter().map(|service| service["pid"].as_i64().unwrap().try_into().unwrap()).collect()
}

/// Whether a process runs. One that nobody has waited for yet has ended all the same.
pub(crate) fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits until a check holds.
pub(crate) fn until(what: &str, mut check: impl FnMut() -> bool) {
    let give_up = Instant::now() + DEADLINE;
    while !check() {
        assert!(Instant::now() < give_up, "waited {DEADLINE:?} in vain for: {what}");
        sleep(PAUSE);
    }
}

/// Eight free ports in a row. Another process may take one before they are used; so few do that in this range.
fn free_ports() -> u16 {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let bases = std::iter::repeat_with(|| 20_000 + rand::random::<u16>() % 1_500 * 8);
    bases.into_iter().take(1000).find(|base| (0..8).all(|offset| is_free(base + offset))).unwrap()
}
