//! Advisory locks between processes.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::PgServerError;
use crate::home::make_folder;

/// How often a taken lock is tried again. A blocking wait could not be given up.
const RETRY: Duration = Duration::from_millis(20);

/// A held lock. The kernel releases it when the value is dropped or the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
    path: PathBuf,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Shared,
    Exclusive,
}

impl FileLock {
    /// Waits until nobody else holds the lock.
    pub(crate) async fn exclusive(path: &Path, deadline: Duration) -> Result<Self, PgServerError> {
        Self::wait(path, Mode::Exclusive, deadline).await
    }

    /// Waits until nobody holds the lock exclusively.
    pub(crate) async fn shared(path: &Path, deadline: Duration) -> Result<Self, PgServerError> {
        Self::wait(path, Mode::Shared, deadline).await
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_exclusive(path: &Path) -> Result<Option<Self>, PgServerError> {
        Self::attempt(open(path)?, path, Mode::Exclusive).map(Result::ok)
    }

    async fn wait(path: &Path, mode: Mode, deadline: Duration) -> Result<Self, PgServerError> {
        let give_up = Instant::now() + deadline;
        let mut file = open(path)?;
        loop {
            file = match Self::attempt(file, path, mode)? {
                Ok(lock) if lock.is_current() => return Ok(lock),
                Ok(_) => open(path)?,
                Err(file) => file,
            };
            if Instant::now() >= give_up {
                return Err(PgServerError::LockTimeout { path: path.to_owned(), deadline });
            }
            sleep(RETRY).await;
        }
    }

    /// The lock, or the file back when somebody else holds it.
    fn attempt(file: File, path: &Path, mode: Mode) -> Result<Result<Self, File>, PgServerError> {
        let outcome = match mode {
            Mode::Shared => file.try_lock_shared(),
            Mode::Exclusive => file.try_lock(),
        };
        match outcome {
            Ok(()) => Ok(Ok(Self { file, path: path.to_owned() })),
            Err(TryLockError::WouldBlock) => Ok(Err(file)),
            Err(TryLockError::Error(source)) => Err(PgServerError::io("locking", path)(source)),
        }
    }

    /// Whether the file is still the one at its path. A holder may have deleted it with its folder, and then the next
    /// one to come locks another file.
    fn is_current(&self) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(held), Ok(found)) => identity(held) == identity(found),
            _ => false,
        }
    }

    /// Notes the holder's process id in the file, for the message of whoever finds it taken.
    pub(crate) fn sign(&mut self) -> Result<(), PgServerError> {
        let signed = self
            .file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| write!(self.file, "{}", std::process::id()));
        signed.map_err(PgServerError::io("writing", &self.path))
    }

    /// The open file, whose lock goes with it to whichever process inherits it.
    pub(crate) fn into_file(self) -> File {
        self.file
    }
}

/// Who signed the lock file last.
pub(crate) fn signature(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(20).read_to_string(&mut text));
    if read.is_err() || text.is_empty() { "?".to_owned() } else { text }
}

/// Opens or creates the file, and its folder, which a holder may have deleted.
fn open(path: &Path) -> Result<File, PgServerError> {
    if let Some(dir) = path.parent().filter(|dir| !dir.is_dir()) {
        make_folder(dir, 0o755)?;
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(PgServerError::io("opening", path))
}
