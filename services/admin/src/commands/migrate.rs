//! Bringing the schema up to date: `migrate`, and the first step of `serve`.

use std::time::Duration;

use clap::Args;
use runtime::{Health, Process, StartError, Stop, wait_for_database};
use store::{MigrateError, Store, schema};

use super::SERVICE;
use crate::config::Settings;

/// Between two tries, when the database goes away in the middle or somebody else migrates for long.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct Options {
    /// Change nothing; the exit code says whether the schema is the one this build needs.
    #[arg(long)]
    check: bool,
    /// Also apply migrations that need all other services to be stopped.
    #[arg(long)]
    maintenance: bool,
}

pub(super) async fn run(process: Process, settings: Settings, options: Options) -> anyhow::Result<()> {
    if !options.check {
        return migrate(&settings, options.maintenance, &process.stop).await.map_err(Into::into);
    }
    let store = Store::new(&settings.migrate_database, SERVICE.name)?;
    wait_for_database(&store, &Health::new(schema::expected()), &process.stop).await?;
    let (applied, expected) = (store.applied_version().await?, schema::expected());
    store.close().await;
    anyhow::ensure!(
        applied >= expected,
        "the schema is at version {applied}, and this build needs {expected}: run ragmux-admin migrate"
    );
    tracing::info!(applied, expected, "the schema is up to date");
    Ok(())
}

/// Waits for the database and migrates it. Any number of processes may do this at once.
pub(super) async fn migrate(settings: &Settings, maintenance: bool, stop: &Stop) -> Result<(), StartError> {
    let store = Store::new(&settings.migrate_database, SERVICE.name).map_err(MigrateError::from)?;
    let health = Health::new(schema::expected());
    loop {
        wait_for_database(&store, &health, stop).await?;
        let migrated = tokio::select! {
            biased;
            () = stop.begun() => return Err(StartError::Stopped),
            migrated = schema::migrate(&settings.migrate_database, maintenance) => migrated,
        };
        match migrated {
            Ok(applied) => {
                tracing::info!(applied = applied.len(), version = schema::expected(), "the schema is up to date");
                store.close().await;
                return Ok(());
            }
            Err(error) if passes(&error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "migrating was interrupted and is tried again");
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = stop.begun() => return Err(StartError::Stopped),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Whether the same may work in a moment. The extension is made by whoever prepares the database, who may be at it.
fn passes(error: &MigrateError) -> bool {
    match error {
        MigrateError::Store(source) | MigrateError::Failed { source, .. } => source.is_transient(),
        MigrateError::ServerTooOld { .. }
        | MigrateError::ExtensionMissing
        | MigrateError::ExtensionTooOld { .. }
        | MigrateError::WrongSchema { .. }
        | MigrateError::Diverged { .. }
        | MigrateError::NeedsMaintenance { .. } => false,
    }
}
