//! The folder of one installation: its files, written whole or not at all, and the lock of the copy that runs on it.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio::time::{Instant, sleep};

const LOCK: &str = "lock";

/// Somebody who only looks whether the lock is taken holds it for a moment.
const LOOKERS: Duration = Duration::from_secs(1);

const RETRY: Duration = Duration::from_millis(50);

/// The folder of one installation.
#[derive(Clone, Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
}

/// Held by the one copy that works on the folder. The kernel takes it back when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl StateDir {
    /// The folder at `path`, whether it is there or not.
    pub(crate) fn at(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("{} is no path", path.display()))?;
        Ok(Self { path: path.canonicalize().unwrap_or(path) })
    }

    /// Makes the folder if it is not there.
    pub(crate) fn create(self) -> anyhow::Result<Self> {
        let logs = self.path.join("logs");
        DirBuilder::new().recursive(true).mode(0o700).create(&logs).map_err(|error| self.failed("made", error))?;
        Self::at(&self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// The file that a program's output goes to.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }

    /// Takes the lock and leaves this process's id in it, or finds out who has it.
    pub(crate) async fn lock(&self) -> anyhow::Result<Result<Lock, Holder>> {
        let path = self.path.join(LOCK);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = opened.map_err(|error| self.failed("written", error))?;
        let give_up = Instant::now() + LOOKERS;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => sleep(RETRY).await,
                Err(TryLockError::WouldBlock) => return Ok(Err(Holder { pid: read_pid(&mut file) })),
                Err(TryLockError::Error(error)) => return Err(self.failed("locked", error)),
            }
        }
        let signed = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        signed.map_err(|error| self.failed("written", error))?;
        Ok(Ok(Lock { _file: file }))
    }

    /// The process that has the lock, if one has. A process that has only just taken it may not have signed yet.
    pub(crate) fn holder(&self) -> anyhow::Result<Option<Holder>> {
        let mut file = match File::open(self.path.join(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("read", error)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(Holder { pid: read_pid(&mut file) })),
            Err(TryLockError::Error(error)) => Err(self.failed("locked", error)),
        }
    }

    /// Writes a file that only its owner can read. Readers see the old text or the new one, nothing in between.
    pub(crate) fn write(&self, name: &str, text: &[u8]) -> anyhow::Result<()> {
        let staged = self.path.join(format!(".{name}.{:08x}", rand::random::<u32>()));
        let written = write_synced(&staged, text).and_then(|()| fs::rename(&staged, self.path.join(name)));
        written.map_err(|error| {
            // What was staged is of no use; that it cannot be removed either changes nothing about the failure.
            let _ = fs::remove_file(&staged);
            self.failed("written", error)
        })
    }

    /// The text of a file; `None` when it is not there.
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<Option<String>> {
        match fs::read_to_string(self.path.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    /// Whether a copy has ever run on the folder.
    pub(crate) fn is_used(&self) -> bool {
        self.path.join(LOCK).is_file()
    }

    /// Removes the files that were made here, half-written ones included, and the folder when nothing else is in it.
    pub(crate) fn remove(&self, is_ours: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let is_log = |name: &str| name.ends_with(".log") || name.ends_with(".log.old");
        let logs = self.path.join("logs");
        let staged =
            |name: &str| name.strip_prefix('.').and_then(|name| name.rsplit_once('.')).map(|(name, _)| name.to_owned());
        remove_files(&logs, is_log)
            .and_then(|()| remove_files(&self.path, |name| is_ours(&staged(name).unwrap_or_else(|| name.to_owned()))))
            // Last: it is what tells that the folder is ours.
            .and_then(|()| remove_files(&self.path, |name| name == LOCK))
            .and_then(|()| remove_if_empty(&logs))
            .and_then(|()| remove_if_empty(&self.path))
            .map_err(|error| self.failed("emptied", error))
    }

    /// A failure as one sentence.
    pub(crate) fn failed(&self, what: &str, error: io::Error) -> anyhow::Error {
        let dir = self.path.display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                anyhow!("the disk is full: no space left in {dir}")
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                anyhow!("the state folder {dir} cannot be {what}: {error}; choose another with --state-dir DIR")
            }
            _ => anyhow!("the state folder {dir} cannot be {what}: {error}"),
        }
    }
}

/// Who has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: Option<u32>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("a process that is only just starting"),
        }
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(20).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn remove_files(dir: &Path, is_ours: impl Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&is_ours) && !entry.file_type()?.is_dir() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// What is left in it is somebody else's.
fn remove_if_empty(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => Ok(()),
        removed => removed,
    }
}

fn write_synced(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder() -> (tempfile::TempDir, StateDir) {
        let parent = tempfile::tempdir().unwrap();
        let dir = StateDir::at(&parent.path().join("a state")).unwrap().create().unwrap();
        (parent, dir)
    }

    #[tokio::test]
    async fn the_lock_has_one_holder_and_names_it() {
        let (_parent, dir) = folder();
        assert_eq!(dir.holder().unwrap(), None);
        let lock = dir.lock().await.unwrap().unwrap();
        let this = Holder { pid: Some(std::process::id()) };
        assert_eq!(dir.holder().unwrap(), Some(this));
        assert_eq!(dir.lock().await.unwrap().unwrap_err(), this);
        assert_eq!(this.to_string(), format!("process {}", std::process::id()));
        drop(lock);
        assert_eq!(dir.holder().unwrap(), None);
        assert!(dir.lock().await.unwrap().is_ok());
    }

    #[test]
    fn files_are_private_and_replaced_whole() {
        let (_parent, dir) = folder();
        assert_eq!(dir.read("x.json").unwrap(), None);
        dir.write("x.json", b"one").unwrap();
        dir.write("x.json", b"two").unwrap();
        assert_eq!(dir.read("x.json").unwrap().as_deref(), Some("two"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir.path().join("x.json")), mode(dir.path())), (0o600, 0o700));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the logs folder and the file");
    }

    #[tokio::test]
    async fn removing_leaves_what_is_somebody_elses() {
        let (_parent, dir) = folder();
        assert!(!dir.is_used());
        drop(dir.lock().await.unwrap());
        assert!(dir.is_used());
        dir.write("x.json", b"").unwrap();
        let ours = [".x.json.0123abcd", "logs/edge.log", "logs/edge.log.old"];
        let others = ["logs/notes", "notes.json"];
        for name in ours.iter().chain(&others) {
            fs::write(dir.path().join(name), "text").unwrap();
        }
        dir.remove(|name| name == "x.json").unwrap();
        assert!(others.iter().all(|name| dir.path().join(name).exists()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the logs folder and the notes");
        for name in others {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        dir.remove(|_| false).unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_full_disk_and_a_forbidden_folder_are_told_apart() {
        let (_parent, dir) = folder();
        let full = dir.failed("written", io::ErrorKind::StorageFull.into()).to_string();
        assert!(full.starts_with("the disk is full"), "{full}");
        let forbidden = dir.failed("written", io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(forbidden.contains("--state-dir"), "{forbidden}");
    }
}
