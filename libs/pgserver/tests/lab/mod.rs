//! A place to try the real server in, and how to look at it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use ragmux_pgserver::{Home, Installation};
use tempfile::TempDir;

/// This crate's program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ragmux-postgres");

/// How long anything that must happen may take on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A state folder with the fetched programs; gone when dropped.
pub(crate) struct Lab {
    state: TempDir,
    home: Home,
    pub(crate) installation: Installation,
}

impl Lab {
    /// `None`, said loudly, when the package index cannot be reached: then there is nothing to test.
    pub(crate) async fn open() -> Option<Self> {
        // The target folder is a lasting user of the programs, so that not every test fetches them.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let lasting = Home::open(&target.join("ragmux-test-pg")).unwrap();
        if let Err(error) = Installation::ensure(&lasting, &|step| eprintln!("{step}")).await {
            let sentence = error.to_string();
            assert!(is_offline(&sentence), "{sentence}");
            return None;
        }
        let state = tempfile::tempdir().unwrap();
        let home = Home::open(state.path()).unwrap();
        let installation = Installation::ensure(&home, &|_| ()).await.unwrap();
        Some(Self { state, home, installation })
    }

    pub(crate) fn state_dir(&self) -> &Path {
        self.state.path()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.home.dir()
    }

    /// Deletes everything as a reset does, which must work.
    pub(crate) async fn finish(self) {
        self.home.clone().remove().await.unwrap();
        assert!(!self.dir().exists());
        assert!(!self.state_dir().join("postgres").exists());
    }

    pub(crate) fn query(&self, url: &str, sql: &str) -> String {
        let output = psql(&self.installation.program("psql"), url, sql);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // After a failed test a server may still run here.
        if self.dir().exists() {
            let _ = Command::new(PROGRAM).args(["reset", "--dir"]).arg(self.state_dir()).status();
        }
    }
}

pub(crate) fn psql(program: &Path, url: &str, sql: &str) -> Output {
    Command::new(program).args([url, "-AtqX", "-v", "ON_ERROR_STOP=1", "-c", sql]).output().unwrap()
}

/// Whether the sentence means that the package index is out of reach; says so, loudly.
pub(crate) fn is_offline(sentence: &str) -> bool {
    let offline = sentence.contains("the Python package index cannot be reached");
    if offline {
        eprintln!("SKIPPED: {sentence}");
    }
    offline
}

pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < give_up, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a process is alive (one that ended and was not collected yet has no command line).
pub(crate) fn is_alive(pid: u32) -> bool {
    std::fs::read(PathBuf::from(format!("/proc/{pid}/cmdline"))).is_ok_and(|line| !line.is_empty())
}
