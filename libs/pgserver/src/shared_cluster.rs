//! One server for all test processes of a checkout.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use config::Secret;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::cluster::loopback_url;
use crate::error::PgServerError;
use crate::file_lock::FileLock;
use crate::initdb::read_password;
use crate::postmaster::{self, POLL};
use crate::staging::remove_tree;
use crate::{Cluster, ClusterOptions, Home, Installation};

/// The environment key that names a server to use instead.
const OVERRIDE: &str = "TEST_DATABASE_URL";

/// A keeper that is stopping the server takes at most 50 s.
const USERS_DEADLINE: Duration = Duration::from_secs(90);

/// Another process may be creating and starting the server on a busy machine.
const START_LOCK_DEADLINE: Duration = Duration::from_secs(300);

/// How long a server that somebody else started may take to become ready before it is started anew.
const READY_DEADLINE: Duration = Duration::from_secs(30);

const KEEPER: &str = include_str!("keeper.sh");

/// A share in a throwaway PostgreSQL that all test processes of a checkout use together.
///
/// The first user starts the server, empty, without durability. Every user holds a shared lock; a small detached shell
/// process, the keeper, waits for that lock to be free and, when it still is three seconds later, stops the server and
/// deletes its data. Since the kernel lets a lock go when its process ends, it does not matter how the tests ended.
/// A newcomer waits only while a stop is under way and then starts a new server.
///
/// Keep the value for as long as the server is needed, at best in a `static`.
#[derive(Debug)]
pub struct SharedCluster {
    url: Secret,
    installation: Option<Installation>,
    _share: Option<Share>,
}

/// A share in whatever server runs on a folder. When the last one is gone, however its process ended, the keeper stops the
/// server and deletes its data.
#[derive(Debug)]
pub struct Share {
    _users: FileLock,
}

impl Share {
    /// Takes a share, and starts the keeper unless there is one. Whoever starts a server there does it afterwards.
    ///
    /// # Errors
    ///
    /// [`PgServerError::LockTimeout`] when the keeper of an earlier server does not end, [`PgServerError::FlockMissing`].
    pub async fn of(dir: &Path) -> Result<Self, PgServerError> {
        let users = FileLock::shared(&dir.join("users.lock"), USERS_DEADLINE).await?;
        ensure_keeper(dir).await?;
        Ok(Self { _users: users })
    }
}

impl SharedCluster {
    /// Joins the server of this checkout, whose files are in `ragmux-test-pg` of the target folder this program was
    /// built into. With `TEST_DATABASE_URL` (a superuser's URL) set, that server is used and nothing is started.
    ///
    /// # Errors
    ///
    /// What keeps a server from being fetched or started.
    pub async fn acquire() -> Result<Self, PgServerError> {
        match std::env::var(OVERRIDE) {
            Ok(url) if !url.is_empty() => Ok(Self { url: Secret::new(url), installation: None, _share: None }),
            _ => Self::acquire_in(&target_folder().join("ragmux-test-pg")).await,
        }
    }

    /// Joins the server of a given folder, whatever the environment says.
    ///
    /// # Errors
    ///
    /// As [`SharedCluster::acquire`].
    pub async fn acquire_in(dir: &Path) -> Result<Self, PgServerError> {
        let home = Home::open(dir)?;
        let dir = home.dir();
        let installation = Installation::ensure(&home, &|step| tracing::info!("{step}")).await?;
        // First the keeper: from here on a server is stopped even when this process is killed while starting it.
        let share = Share::of(dir).await?;
        let start = FileLock::exclusive(&dir.join("start.lock"), START_LOCK_DEADLINE).await?;
        let url = match usable(dir).await {
            Some(url) => url,
            None => start_afresh(&installation, dir).await?,
        };
        drop(start);
        Ok(Self { url, installation: Some(installation), _share: Some(share) })
    }

    /// The superuser's URL of the database `postgres`.
    #[must_use]
    pub fn url(&self) -> &Secret {
        &self.url
    }

    /// One of PostgreSQL's programs: of the fetched server, or the one on the path when `TEST_DATABASE_URL` is used.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.installation.as_ref().map_or_else(|| PathBuf::from(name), |installation| installation.program(name))
    }
}

/// Starts the keeper unless one is alive. It inherits the lock that says so as its standard input.
async fn ensure_keeper(dir: &Path) -> Result<(), PgServerError> {
    let Some(lock) = FileLock::try_exclusive(&dir.join("keeper.lock"))? else { return Ok(()) };
    let shell = Path::new("sh");
    let mut probe = Command::new(shell);
    probe.args(["-c", "command -v flock"]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let has_flock = probe.status().await.map_err(PgServerError::io("running", shell))?.success();
    if !has_flock {
        return Err(PgServerError::FlockMissing);
    }
    Command::new(shell)
        .args(["-c", KEEPER, "ragmux-test-pg-keeper"])
        .arg(dir)
        .current_dir("/")
        .stdin(Stdio::from(lock.into_file()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // The terminal's Ctrl-C is for the tests; the keeper must see them end.
        .process_group(0)
        .spawn()
        .map(drop)
        .map_err(PgServerError::io("running", shell))
}

/// The URL of a server that is already running for this folder.
async fn usable(dir: &Path) -> Option<Secret> {
    let data = dir.join("data");
    let password = read_password(dir)?;
    let give_up = Instant::now() + READY_DEADLINE;
    while let Some(found) = postmaster::running(&data) {
        if let (Some(port), true) = (found.port, found.is_ready) {
            return Some(loopback_url(port, &password));
        }
        if Instant::now() >= give_up {
            break;
        }
        sleep(POLL).await;
    }
    None
}

/// Starts from nothing: without durability, data that outlived a crash of the machine may be damaged, and tests want
/// none of it.
async fn start_afresh(installation: &Installation, dir: &Path) -> Result<Secret, PgServerError> {
    Cluster::stop_orphan(dir).await?;
    let data = dir.join("data");
    let emptied = data.clone();
    spawn_blocking(move || remove_tree(&emptied)).await.map_err(PgServerError::interrupted(&data))??;
    let cluster = Cluster::open(installation, dir, ClusterOptions::for_tests()).await?;
    Ok(cluster.hand_over())
}

/// The target folder this program lies in, known by the tag cargo puts there; the folder for temporary files for a
/// program that was copied elsewhere.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let tagged = program.ancestors().skip(1).find(|dir| dir.join("CACHEDIR.TAG").is_file());
    tagged.map_or_else(std::env::temp_dir, Path::to_owned)
}
