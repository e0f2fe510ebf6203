//! One database directory and its server.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use config::Secret;
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use crate::account::{Account, is_root, server_command};
use crate::error::{PgServerError, says_disk_full};
use crate::file_lock::{FileLock, signature};
use crate::home::make_folder;
use crate::initdb::ensure_data;
use crate::postmaster::{self, POLL, PidFile};
use crate::server_log::{reason, tail};
use crate::{ClusterOptions, Installation};

/// The pause before a start that failed for a passing reason is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// A parallel index build keeps up to `maintenance_work_mem` (64 MB) in shared memory, beside whatever else is there.
const ENOUGH_SHARED_MEMORY_BYTES: u64 = 256 * 1024 * 1024;

/// A running server that belongs to this process.
///
/// The folder holds `data`, the superuser's `password`, `postgres.log` of this start and `postgres.log.old` of the one
/// before. Dropping the value asks the server to stop without waiting; [`Cluster::stop`] waits. When the process is
/// killed the server goes on, and the next [`Cluster::open`] on the same folder stops it first.
#[derive(Debug)]
pub struct Cluster {
    data: PathBuf,
    log: PathBuf,
    options: ClusterOptions,
    port: u16,
    pid: u32,
    child: Child,
    url: Secret,
    /// Whether the server ends with this value.
    is_owned: bool,
    _lock: Option<FileLock>,
}

impl Cluster {
    /// Creates the cluster in `dir` if there is none, starts its server and waits until it accepts connections.
    ///
    /// For root, `dir` must be a folder the server's user can enter; [`crate::Home`] finds one.
    ///
    /// # Errors
    ///
    /// [`PgServerError::AlreadyRunning`] when another process has the cluster open, [`PgServerError::PortInUse`],
    /// [`PgServerError::DiskFull`], and for every other failure to start the last words of the server.
    pub async fn open(installation: &Installation, dir: &Path, options: ClusterOptions) -> Result<Self, PgServerError> {
        if !dir.is_dir() {
            make_folder(dir, if is_root() { 0o755 } else { 0o700 })?;
        }
        let dir = &dir.canonicalize().map_err(PgServerError::io("resolving", dir))?;
        let lock_file = dir.join("lock");
        let Some(mut lock) = FileLock::try_exclusive(&lock_file)? else {
            return Err(PgServerError::AlreadyRunning { dir: dir.clone(), owner: signature(&lock_file) });
        };
        lock.sign()?;
        stop_left_behind(dir, &options).await?;

        let account = Account::for_server()?;
        let password = ensure_data(installation, dir, account.as_ref(), &options).await?;
        let give_up = Instant::now() + options.start_deadline;
        loop {
            let port = options.port.map_or_else(|| free_port(dir), |port| check_port(port, dir))?;
            let url = loopback_url(port, &password);
            let spawned = Self::spawn(installation, dir, account.as_ref(), options.clone(), port, url)?;
            let error = match spawned.ready().await {
                Ok(mut cluster) => {
                    cluster._lock = Some(lock);
                    return Ok(cluster);
                }
                Err(error) => error,
            };
            let may_pass = match &error {
                // Somebody else took the free port first.
                PgServerError::PortInUse { .. } => options.port.is_none(),
                // The sessions of a killed server end by themselves a moment later.
                PgServerError::StartFailed { detail, .. } => detail.contains("is still in use"),
                _ => false,
            };
            if !may_pass || Instant::now() >= give_up {
                return Err(error);
            }
            sleep(RETRY).await;
        }
    }

    fn spawn(
        installation: &Installation,
        dir: &Path,
        account: Option<&Account>,
        options: ClusterOptions,
        port: u16,
        url: Secret,
    ) -> Result<Self, PgServerError> {
        let data = dir.join("data");
        let log = dir.join("postgres.log");
        // An old log is of use once, after a crash; kept for ever it would only grow.
        if log.exists() {
            fs::rename(&log, dir.join("postgres.log.old")).map_err(PgServerError::io("renaming", &log))?;
        }
        let output = File::create(&log).map_err(PgServerError::io("creating", &log))?;
        let errors = output.try_clone().map_err(PgServerError::io("opening", &log))?;
        let program = installation.program("postgres");
        let mut command = server_command(&program, account);
        command.arg("-D").arg(&data);
        for setting in options.server_settings(port, is_shared_memory_small()) {
            command.arg("-c").arg(setting);
        }
        // A process group of its own: Ctrl-C in the terminal is for the launcher, which stops the server last.
        command.stdout(Stdio::from(output)).stderr(Stdio::from(errors)).process_group(0);
        let child = command.spawn().map_err(PgServerError::io("running", &program))?;
        let pid = child.id().unwrap_or_default();
        Ok(Self { data, log, options, port, pid, child, url, is_owned: true, _lock: None })
    }

    /// Waits until the server accepts connections, by the word of its pid file, which is what `pg_ctl` waits for too.
    async fn ready(mut self) -> Result<Self, PgServerError> {
        let deadline = self.options.start_deadline;
        let give_up = Instant::now() + deadline;
        loop {
            let ended = self.child.try_wait().map_err(PgServerError::io("watching", &self.data))?;
            if ended.is_some() {
                return Err(self.start_failure());
            }
            if PidFile::read(&self.data).is_some_and(|found| found.pid == self.pid && found.is_ready) {
                return Ok(self);
            }
            if Instant::now() >= give_up {
                let detail = reason(&tail(&self.log));
                let log = self.log.clone();
                postmaster::stop(self.pid, &self.data, self.options.stop_deadline).await?;
                return Err(PgServerError::StartTimeout { deadline, detail, log });
            }
            sleep(POLL).await;
        }
    }

    fn start_failure(&self) -> PgServerError {
        let words = tail(&self.log);
        if says_disk_full(&words) {
            PgServerError::DiskFull { dir: self.data.clone() }
        } else if words.contains("Address already in use") {
            PgServerError::PortInUse { port: self.port }
        } else {
            PgServerError::StartFailed { detail: reason(&words), log: self.log.clone() }
        }
    }

    /// The superuser's URL of the database `postgres`.
    #[must_use]
    pub fn url(&self) -> &Secret {
        &self.url
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The server's log of this start.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits until the server has ended by itself. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the operating system cannot say.
    pub async fn ended(&mut self) -> Result<ExitStatus, PgServerError> {
        self.child.wait().await.map_err(PgServerError::io("watching", &self.data))
    }

    /// Stops the server: sessions are cut and the data is written out; past the deadline of the options it is told to
    /// drop everything, which costs the next start a replay and no data.
    ///
    /// # Errors
    ///
    /// [`PgServerError::StopFailed`] when it survives even being killed.
    pub async fn stop(mut self) -> Result<(), PgServerError> {
        let stopped = postmaster::stop(self.pid, &self.data, self.options.stop_deadline).await;
        if stopped.is_ok() {
            self.ended().await?;
        }
        stopped
    }

    /// Lets the server outlive this value and this process.
    pub(crate) fn hand_over(mut self) -> Secret {
        self.is_owned = false;
        self.url.clone()
    }

    /// Stops the server that a killed process left running on `dir`, if there is one. Returns whether there was.
    ///
    /// # Errors
    ///
    /// [`PgServerError::AlreadyRunning`] when a living process has the cluster open, [`PgServerError::StopFailed`].
    pub async fn stop_orphan(dir: &Path) -> Result<bool, PgServerError> {
        let Ok(dir) = dir.canonicalize() else { return Ok(false) };
        let lock_file = dir.join("lock");
        if !lock_file.exists() {
            return Ok(false);
        }
        let Some(lock) = FileLock::try_exclusive(&lock_file)? else {
            return Err(PgServerError::AlreadyRunning { dir, owner: signature(&lock_file) });
        };
        let found = stop_left_behind(&dir, &ClusterOptions::default()).await?;
        drop(lock);
        Ok(found)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.is_owned && matches!(self.child.try_wait(), Ok(None)) {
            postmaster::request_stop(self.pid, &self.data);
        }
    }
}

/// A server without its launcher has settings nobody knows any more, so it is stopped rather than adopted.
async fn stop_left_behind(dir: &Path, options: &ClusterOptions) -> Result<bool, PgServerError> {
    let data = dir.join("data");
    let Some(left) = postmaster::running(&data) else { return Ok(false) };
    tracing::info!(pid = left.pid, "a postgresql that an earlier run left behind is being stopped");
    postmaster::stop(left.pid, &data, options.stop_deadline).await?;
    Ok(true)
}

/// The superuser's URL of the database `postgres` on a loopback port.
pub(crate) fn loopback_url(port: u16, password: &Secret) -> Secret {
    Secret::new(format!("postgres://postgres:{}@127.0.0.1:{port}/postgres", password.expose()))
}

fn free_port(dir: &Path) -> Result<u16, PgServerError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(PgServerError::io("finding a port for", dir))
}

/// Asks before the server does, because the server's own words about it are several lines long.
fn check_port(port: u16, dir: &Path) -> Result<u16, PgServerError> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(port),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(PgServerError::PortInUse { port }),
        Err(error) => Err(PgServerError::io("binding a port for", dir)(error)),
    }
}

/// Whether `/dev/shm` is missing or small, as it is in containers.
fn is_shared_memory_small() -> bool {
    rustix::fs::statvfs("/dev/shm").map_or(true, |fs| fs.f_blocks * fs.f_frsize < ENOUGH_SHARED_MEMORY_BYTES)
}
