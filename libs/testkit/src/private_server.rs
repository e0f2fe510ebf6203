//! A database server of one's own.

use std::io::ErrorKind;
use std::path::Path;

use domain::Secret;
use pgserver::{Cluster, ClusterOptions, Home, Installation};
use store::testing::TestDatabase;

/// A PostgreSQL that keeps what it commits, as an installation's does: what a benchmark measures, where tests use the
/// faster one they share.
pub struct PrivateServer {
    cluster: Cluster,
}

impl PrivateServer {
    /// Starts it, empty, on a state folder, which is made when it is missing. What an earlier server has left there is
    /// removed first.
    ///
    /// # Errors
    /// When it cannot be fetched or started, or another process has it open.
    pub async fn start(state_dir: &Path) -> anyhow::Result<Self> {
        let home = Home::open(state_dir)?;
        let installation = Installation::ensure(&home, &|_| ()).await?;
        Cluster::stop_orphan(home.dir()).await?;
        match tokio::fs::remove_dir_all(home.dir().join("data")).await {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        Ok(Self { cluster: Cluster::open(&installation, home.dir(), ClusterOptions::default()).await? })
    }

    /// A migrated database that is dropped with the value.
    ///
    /// # Errors
    /// When a migration fails.
    pub async fn database(&self) -> anyhow::Result<TestDatabase> {
        TestDatabase::migrated(&Secret::new(self.cluster.url().expose())).await
    }

    /// The process id of the server; its sessions are children of that process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.cluster.pid()
    }

    /// Stops it and waits.
    ///
    /// # Errors
    /// When it survives even being killed.
    pub async fn stop(self) -> anyhow::Result<()> {
        Ok(self.cluster.stop().await?)
    }
}
