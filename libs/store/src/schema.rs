//! The schema's version: which migrations this build has, which are applied, and applying them.

use config::Database;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row};

use crate::error::{MigrateError, StoreError};
use crate::pool::{DatabaseFacts, Store, check_facts};

/// One step of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number, from 1, without gaps.
    pub version: i32,
    /// The name of its file.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

macro_rules! migrations {
    ($($version:literal $name:literal,)+) => {
        &[$(Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../../../migrations/", $name)),
        },)+]
    };
}

/// All migrations of this build, in order. A test compares the list with the folder.
pub const MIGRATIONS: &[Migration] = migrations! {
    1 "0001_platform.sql",
    2 "0002_people.sql",
    3 "0003_models.sql",
    4 "0004_projects_and_keys.sql",
    5 "0005_documents.sql",
    6 "0006_search.sql",
    7 "0007_ledger.sql",
    8 "0008_admit.sql",
    9 "0009_settle.sql",
    10 "0010_ledger_tiers.sql",
    11 "0011_admit_each.sql",
    12 "0012_admit_calls.sql",
    13 "0013_settle_calls.sql",
    14 "0014_features.sql",
    15 "0015_usage.sql",
    16 "0016_ledger_locks.sql",
    17 "0017_key_standings.sql",
    18 "0018_locked_projects.sql",
    19 "0019_replay.sql",
    20 "0020_embedding_switches.sql",
    21 "0021_vector_tables.sql",
    22 "0022_admit_in_place.sql",
    23 "0023_removals.sql",
    24 "0024_lexical_folding.sql",
    25 "0025_key_standings.sql",
};

const GRANTS: &str = include_str!("grants.sql");

/// First half of the advisory lock key of a schema, for use before `advisory_class()` exists.
const LOCK: &str = "SELECT pg_advisory_xact_lock(('x' || left(md5('ragmux:' || $1), 8))::bit(32)::integer, 1)";

impl Migration {
    fn checksum(&self) -> Vec<u8> {
        Sha256::digest(self.sql.as_bytes()).to_vec()
    }

    /// Whether it can only be applied while no service runs.
    #[must_use]
    pub fn needs_maintenance(&self) -> bool {
        self.sql.lines().next().is_some_and(|line| line.trim() == "-- needs: maintenance window")
    }
}

/// The version this build was made for.
#[must_use]
pub fn expected() -> i32 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

impl Store {
    /// The version the database is at; 0 when it has never been migrated.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn applied_version(&self) -> Result<i32, StoreError> {
        let answer =
            sqlx::query_scalar!("SELECT max(version) FROM schema_migrations").fetch_one(self.beat_pool()).await;
        match answer {
            Ok(version) => Ok(version.unwrap_or(0)),
            Err(error) if is_undefined_table(&error) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) fn is_undefined_table(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "42P01")
}

/// Applies what is missing, one transaction a migration, and grants the service roles what they need. Any number of
/// processes may do this at once: a lock keyed by the schema lets one work and shows the others that it is done.
///
/// Returns the versions applied now.
///
/// # Errors
/// See [`MigrateError`]; what was applied before the failure stays.
pub async fn migrate(config: &Database, maintenance: bool) -> Result<Vec<i32>, MigrateError> {
    let options: PgConnectOptions = config.url.expose().parse().map_err(StoreError::from)?;
    let mut connection = options
        .application_name("ragmux migrate")
        .extra_float_digits(None)
        .disable_statement_logging()
        .connect()
        .await
        .map_err(StoreError::from)?;
    let result = migrate_on(&mut connection, &config.schema, maintenance).await;
    // A close that fails changes nothing about what was committed.
    let _ = connection.close().await;
    result
}

async fn migrate_on(connection: &mut PgConnection, schema: &str, maintenance: bool) -> Result<Vec<i32>, MigrateError> {
    let mut applied = Vec::new();
    loop {
        let mut transaction = connection.begin().await.map_err(StoreError::from)?;
        let path = enter_schema(&mut transaction, schema).await?;
        check_facts(&path, schema)?;
        let done = applied_checksums(&mut transaction).await?;
        for migration in MIGRATIONS {
            let diverged = done.iter().any(|(v, sum)| *v == migration.version && *sum != migration.checksum());
            if diverged {
                return Err(MigrateError::Diverged { version: migration.version });
            }
        }
        let current = done.iter().map(|(version, _)| *version).max().unwrap_or(0);
        let Some(next) = MIGRATIONS.iter().find(|migration| migration.version > current) else {
            run(&mut transaction, GRANTS, 0).await?;
            transaction.commit().await.map_err(StoreError::from)?;
            return Ok(applied);
        };
        if next.needs_maintenance() && !maintenance {
            return Err(MigrateError::NeedsMaintenance { version: next.version });
        }
        run(&mut transaction, next.sql, next.version).await?;
        sqlx::query("INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)")
            .persistent(false)
            .bind(next.version)
            .bind(next.name)
            .bind(next.checksum())
            .execute(&mut *transaction)
            .await
            .map_err(StoreError::from)?;
        transaction.commit().await.map_err(StoreError::from)?;
        tracing::info!(version = next.version, name = next.name, "a migration was applied");
        applied.push(next.version);
    }
}

/// Points the transaction at the schema (made if it is missing) and takes the migration lock until its end.
async fn enter_schema(connection: &mut PgConnection, schema: &str) -> Result<DatabaseFacts, MigrateError> {
    // A table that is there already is no news; the driver would log the notice.
    let settings =
        "SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = 0; SET LOCAL client_min_messages = warning";
    run(connection, settings, 0).await?;
    sqlx::query(LOCK).persistent(false).bind(schema).execute(&mut *connection).await.map_err(StoreError::from)?;
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), e.extversion,
                n.nspname::text, to_regnamespace($1) IS NOT NULL
           FROM (SELECT 1) one
                LEFT JOIN pg_extension e ON e.extname = 'vector'
                LEFT JOIN pg_namespace n ON n.oid = e.extnamespace",
    )
    .persistent(false)
    .bind(schema)
    .fetch_one(&mut *connection)
    .await
    .map_err(StoreError::from)?;
    let read = |error: sqlx::Error| MigrateError::from(StoreError::from(error));
    let facts = DatabaseFacts {
        server_version: row.try_get(0).map_err(read)?,
        server_version_text: row.try_get(1).map_err(read)?,
        vector_version: row.try_get(2).map_err(read)?,
        schema: Some(schema.to_owned()),
    };
    let extension_schema: Option<String> = row.try_get(3).map_err(read)?;
    if !row.try_get::<bool, _>(4).map_err(read)? {
        // The name is one of a-z, 0-9 and _ (checked when the configuration is read).
        run(connection, &format!("CREATE SCHEMA \"{schema}\""), 0).await?;
    }
    sqlx::query("SELECT set_config('search_path', concat_ws(', ', quote_ident($1), quote_ident($2), 'pg_temp'), true)")
        .persistent(false)
        .bind(schema)
        .bind(extension_schema.filter(|name| name != schema))
        .execute(&mut *connection)
        .await
        .map_err(StoreError::from)?;
    run(
        connection,
        "CREATE TABLE IF NOT EXISTS schema_migrations (
             version    integer PRIMARY KEY,
             name       text NOT NULL,
             checksum   bytea NOT NULL,
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
         )",
        0,
    )
    .await?;
    Ok(facts)
}

async fn applied_checksums(connection: &mut PgConnection) -> Result<Vec<(i32, Vec<u8>)>, StoreError> {
    let rows = sqlx::query("SELECT version, checksum FROM schema_migrations ORDER BY version")
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

async fn run(connection: &mut PgConnection, sql: &str, version: i32) -> Result<(), MigrateError> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *connection)
        .await
        .map_err(|error| MigrateError::Failed { version, source: error.into() })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_list_is_the_folder_without_gaps() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        let mut files: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        let listed: Vec<&str> = MIGRATIONS.iter().map(|migration| migration.name).collect();
        assert_eq!(files, listed);
        for (migration, number) in MIGRATIONS.iter().zip(1..) {
            assert_eq!(migration.version, number);
            assert!(migration.name.starts_with(&format!("{number:04}_")));
        }
    }
}
