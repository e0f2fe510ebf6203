//! A database server of one's own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use domain::Secret;
use pgserver::{Cluster, ClusterOptions, Home, Installation, Share};
use rustix::process::{Pid, Signal, kill_process};
use store::testing::TestDatabase;

use crate::port::quiet_port;

/// A PostgreSQL that keeps what it commits, as an installation's does: what a benchmark measures and what can be taken
/// away, where tests use the faster one they share.
pub struct PrivateServer {
    cluster: Option<Cluster>,
    installation: Installation,
    dir: PathBuf,
    options: ClusterOptions,
    url: Secret,
    _share: Share,
}

impl PrivateServer {
    /// Starts it, empty, on a state folder, which is made when it is missing. What an earlier server has left there is
    /// removed first. It ends with this process, however that ends, and its data with it.
    ///
    /// # Errors
    /// When it cannot be fetched or started, or another process has it open.
    pub async fn start(state_dir: &Path) -> anyhow::Result<Self> {
        let home = Home::open(state_dir)?;
        let installation = Installation::ensure(&home, &|_| ()).await?;
        let dir = home.dir().to_owned();
        let share = Share::of(&dir).await?;
        Cluster::stop_orphan(&dir).await?;
        match tokio::fs::remove_dir_all(dir.join("data")).await {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let mut options = ClusterOptions::default();
        options.port = Some(quiet_port()?);
        let cluster = Cluster::open(&installation, &dir, options.clone()).await?;
        let url = cluster.url().clone();
        Ok(Self { cluster: Some(cluster), installation, dir, options, url, _share: share })
    }

    /// The same on a folder of this name among what was built, beside the program that is running.
    ///
    /// # Errors
    /// As for [`PrivateServer::start`].
    pub async fn start_named(name: &str) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let folder = program.parent().context("this program is in no folder")?;
        Self::start(&folder.join("ragmux-private-pg").join(name)).await
    }

    /// A migrated database that is dropped with the value.
    ///
    /// # Errors
    /// When a migration fails.
    pub async fn database(&self) -> anyhow::Result<TestDatabase> {
        TestDatabase::migrated(&self.url).await
    }

    /// The process id of the server; its sessions are children of that process. 0 while it is halted.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.cluster.as_ref().map_or(0, Cluster::pid)
    }

    /// Kills one of its sessions without a word. The server then ends all others, recovers and goes on.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn kill_session(&self, pid: i32) -> anyhow::Result<()> {
        let pid = Pid::from_raw(pid).context("that is no process id")?;
        Ok(kill_process(pid, Signal::KILL)?)
    }

    /// Stops it for a while, as an operator would: sessions are ended, nothing that was committed is lost.
    ///
    /// # Errors
    /// When it survives even being killed.
    pub async fn halt(&mut self) -> anyhow::Result<()> {
        match self.cluster.take() {
            Some(cluster) => Ok(cluster.stop().await?),
            None => Ok(()),
        }
    }

    /// Starts it again where it was.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn resume(&mut self) -> anyhow::Result<()> {
        self.cluster = Some(Cluster::open(&self.installation, &self.dir, self.options.clone()).await?);
        Ok(())
    }

    /// One of its programs, such as `pg_dump`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.installation.program(name)
    }

    /// Stops it and waits.
    ///
    /// # Errors
    /// When it survives even being killed.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.halt().await
    }
}
