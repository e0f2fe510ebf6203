//! Databases for tests: each test gets one of its own, cloned from a migrated template, and works with the three roles
//! of a real installation.

mod documents;
mod gateway;
mod ledger;
mod rest;
mod transaction;
mod uploads;
mod usage;
mod vectors;
mod watch;
mod widths;
pub mod work;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use domain::Secret;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};

pub use self::documents::{DocumentFacts, IngestTotals};
pub use self::gateway::LoggedCall;
pub use self::ledger::{ProjectLock, TierTotals};
pub use self::transaction::OpenTransaction;
pub use self::uploads::{ChunkFacts, UploadFacts};
pub use self::usage::{LogRow, UsageRow};
pub use self::vectors::VectorWatch;
pub use self::watch::{Cap, LedgerWatch, Meter, TierCap, TierId, WatchedCall, WatchedRow};
use crate::provision::{RoleUrls, provision, role_urls};
use crate::{Store, StoreError, schema};

const PASSWORD: &str = "ragmux";
const PREFIX: &str = "ragmux_test_";

/// A database that lives as long as this value.
pub struct TestDatabase {
    name: String,
    superuser: Secret,
    urls: RoleUrls,
}

/// One of the three roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleName {
    /// Runs migrations.
    Owner,
    /// The edge.
    Edge,
    /// Admin and worker.
    Backend,
}

impl TestDatabase {
    /// A migrated database on the server behind a superuser's URL.
    ///
    /// # Errors
    /// When the server cannot be reached or the migrations fail.
    pub async fn migrated(superuser: &Secret) -> anyhow::Result<Self> {
        let template = template(superuser).await?;
        Self::clone_of(superuser, &template).await
    }

    /// A database with the extension and the roles but without a schema.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn unmigrated(superuser: &Secret) -> anyhow::Result<Self> {
        let name = new_name();
        let urls = provision(superuser, &name, &Secret::new(PASSWORD)).await?;
        Ok(Self { name, superuser: superuser.clone(), urls })
    }

    async fn clone_of(superuser: &Secret, template: &str) -> anyhow::Result<Self> {
        let name = new_name();
        let mut server = connect(superuser, None).await?;
        execute(&mut server, format!("CREATE DATABASE \"{name}\" TEMPLATE \"{template}\"")).await?;
        server.close().await?;
        let urls = role_urls(superuser, &name, &Secret::new(PASSWORD))?;
        Ok(Self { name, superuser: superuser.clone(), urls })
    }

    /// The database's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A role's URL.
    #[must_use]
    pub fn url(&self, role: RoleName) -> &Secret {
        match role {
            RoleName::Owner => &self.urls.owner,
            RoleName::Edge => &self.urls.edge,
            RoleName::Backend => &self.urls.backend,
        }
    }

    /// The configuration a service would read for a role.
    #[must_use]
    pub fn config(&self, role: RoleName) -> config::Database {
        config::Database {
            url: self.url(role).clone(),
            pooler: config::Pooler::None,
            max_connections: 6,
            acquire_timeout: Duration::from_secs(10),
            schema: "public".to_owned(),
        }
    }

    /// A store that works as a role.
    ///
    /// # Errors
    /// When the URL is refused by the driver.
    pub fn store(&self, role: RoleName) -> Result<Store, StoreError> {
        Store::new(&self.config(role), "ragmux test")
    }

    /// A pool of a superuser, for arranging and looking in ways no service may.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn superuser_pool(&self) -> anyhow::Result<PgPool> {
        let options: PgConnectOptions = self.superuser.expose().parse()?;
        Ok(sqlx::postgres::PgPoolOptions::new()
            .max_connections(4)
            .connect_with(options.database(&self.name).disable_statement_logging())
            .await?)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (superuser, name) = (self.superuser.clone(), self.name.clone());
        // A runtime of its own on a thread of its own: the test's may be shutting down. What cannot be dropped is left.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                let work = async {
                    let mut server = connect(&superuser, None).await.ok()?;
                    execute(&mut server, format!("DROP DATABASE IF EXISTS \"{name}\" WITH (FORCE)")).await.ok()
                };
                tokio::time::timeout(Duration::from_secs(10), work).await.ok().flatten()
            })
        });
        let _ = dropped.join();
    }
}

/// The migrated template of this build, made once however many tests ask at the same moment. It is named after what is
/// in it, so a changed migration makes a new one.
async fn template(superuser: &Secret) -> anyhow::Result<String> {
    let mut hash = Sha256::new();
    for migration in schema::MIGRATIONS {
        hash.update(migration.sql);
    }
    hash.update(include_str!("../grants.sql"));
    hash.update(include_str!("../../../../deploy/postgres/roles.sql"));
    let name = format!("ragmux_template_{}", hex::encode(hash.finalize().iter().take(8).copied().collect::<Vec<u8>>()));

    let mut server = connect(superuser, None).await?;
    sqlx::query("SELECT pg_advisory_lock(7001)").execute(&mut server).await?;
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut server)
        .await?;
    if !exists {
        // Made under another name, so that a test killed in the middle leaves no half-migrated template.
        let making = format!("{name}_making");
        execute(&mut server, format!("DROP DATABASE IF EXISTS \"{making}\" WITH (FORCE)")).await?;
        let urls = provision(superuser, &making, &Secret::new(PASSWORD)).await?;
        let config = config::Database {
            url: urls.owner,
            pooler: config::Pooler::None,
            max_connections: 3,
            acquire_timeout: Duration::from_secs(10),
            schema: "public".to_owned(),
        };
        schema::migrate(&config, true).await?;
        execute(&mut server, format!("ALTER DATABASE \"{making}\" RENAME TO \"{name}\"")).await?;
    }
    server.close().await?;
    Ok(name)
}

fn new_name() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    format!("{PREFIX}{seconds}_{}", uuid::Uuid::new_v4().simple())
}

async fn connect(superuser: &Secret, database: Option<&str>) -> anyhow::Result<PgConnection> {
    let mut options: PgConnectOptions = superuser.expose().parse()?;
    if let Some(database) = database {
        options = options.database(database);
    }
    Ok(options.disable_statement_logging().connect().await?)
}

async fn execute(connection: &mut PgConnection, sql: String) -> anyhow::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}
