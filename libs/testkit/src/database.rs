//! Databases on the server that all test processes of a checkout share.

use std::path::PathBuf;

use domain::Secret;
use pgserver::SharedCluster;
use store::testing::TestDatabase;
use tokio::sync::OnceCell;

static SERVER: OnceCell<SharedCluster> = OnceCell::const_new();

async fn server() -> anyhow::Result<&'static SharedCluster> {
    Ok(SERVER.get_or_try_init(SharedCluster::acquire).await?)
}

/// A migrated database that is dropped with the value.
///
/// # Errors
/// When no server can be started or a migration fails.
pub async fn database() -> anyhow::Result<TestDatabase> {
    TestDatabase::migrated(&Secret::new(server().await?.url().expose())).await
}

/// A database with the extension and the roles, but without a schema.
///
/// # Errors
/// When no server can be started.
pub async fn unmigrated_database() -> anyhow::Result<TestDatabase> {
    TestDatabase::unmigrated(&Secret::new(server().await?.url().expose())).await
}

/// One of PostgreSQL's programs, such as `pg_dump`.
///
/// # Errors
/// When no server can be started.
pub async fn postgres_program(name: &str) -> anyhow::Result<PathBuf> {
    Ok(server().await?.program(name))
}
