//! Waiting for what a service needs, in whatever order things are started.

use std::time::Duration;

use store::{MigrateError, Store, StoreError, schema};
use thiserror::Error;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::health::Health;
use crate::stop::Stop;

/// Longer than any of these questions takes, shorter than an operator's patience.
const ANSWER: Duration = Duration::from_secs(10);

/// Why a service did not get to work.
#[derive(Debug, Error)]
pub enum StartError {
    /// It was told to stop while it waited. [`crate::start`] takes this for success.
    #[error("told to stop while starting")]
    Stopped,
    /// The server is not one to work with, and waiting will not change that.
    #[error(transparent)]
    Server(#[from] MigrateError),
    /// The process could not be entered into the list of instances.
    #[error("the process could not be entered into the list of instances")]
    Register(#[source] StoreError),
    /// The database refuses what a start needs of it, and waiting will not change that.
    #[error("the database refuses what the service needs to start")]
    Refused(#[source] StoreError),
}

/// What a process cannot start without.
#[derive(Clone, Copy)]
enum Need {
    Database,
    Schema,
}

/// What is not there yet.
#[derive(Debug)]
enum Missing {
    Database(StoreError),
    Answer,
    Extension,
    Schema { name: String },
    Migrations { applied: i32, expected: i32 },
}

/// Waits until the database answers, for the service that migrates it.
///
/// # Errors
///
/// [`StartError::Stopped`].
pub async fn wait_for_database(store: &Store, health: &Health, stop: &Stop) -> Result<(), StartError> {
    Need::Database.wait(store, health, stop).await
}

/// Waits until the database answers and has at least the schema of this build, for the services that never migrate.
///
/// # Errors
///
/// [`StartError::Stopped`], or [`StartError::Server`] for a server that is too old or a role that works in another
/// schema.
pub async fn wait_for_schema(store: &Store, health: &Health, stop: &Stop) -> Result<(), StartError> {
    Need::Schema.wait(store, health, stop).await
}

/// Asks the database until it answers: it was there a moment ago, and one that restarts ends no start. Why it does not
/// answer is logged when that changes, not at each try.
///
/// # Errors
///
/// [`StartError::Stopped`], or [`StartError::Refused`] for what trying again does not help.
pub async fn persist<T, F>(stop: &Stop, ask: impl Fn() -> F) -> Result<T, StartError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut backoff = Backoff::new();
    let mut told = String::new();
    loop {
        let answer = tokio::select! {
            biased;
            () = stop.begun() => return Err(StartError::Stopped),
            answer = ask() => answer,
        };
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error) if error.is_transient() => {
                let description = error.to_string();
                if description != told {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "the database went away during the start, trying again");
                    told = description;
                }
            }
            Err(error) => return Err(StartError::Refused(error)),
        }
        tokio::select! {
            biased;
            () = stop.begun() => return Err(StartError::Stopped),
            () = tokio::time::sleep(backoff.next()) => {}
        }
    }
}

async fn missing_for_schema(store: &Store, health: &Health) -> Result<Option<Missing>, StartError> {
    let facts = match store.facts().await {
        Ok(facts) => facts,
        Err(error) => return Ok(Some(Missing::Database(error))),
    };
    // Whoever prepares the database may be at it right now, so what is not there yet is waited for.
    if facts.schema.is_none() {
        return Ok(Some(Missing::Schema { name: store.schema().to_owned() }));
    }
    match store.check_server().await {
        Ok(_) => {}
        Err(MigrateError::ExtensionMissing) => return Ok(Some(Missing::Extension)),
        Err(MigrateError::Store(error)) => return Ok(Some(Missing::Database(error))),
        Err(error) => return Err(error.into()),
    }
    let applied = match store.applied_version().await {
        Ok(applied) => applied,
        Err(error) => return Ok(Some(Missing::Database(error))),
    };
    health.database_seen(applied);
    let expected = schema::expected();
    Ok((applied < expected).then_some(Missing::Migrations { applied, expected }))
}

impl Need {
    async fn missing(self, store: &Store, health: &Health) -> Result<Option<Missing>, StartError> {
        match self {
            Self::Database => Ok(store.ping().await.err().map(Missing::Database)),
            Self::Schema => missing_for_schema(store, health).await,
        }
    }

    /// Asks until nothing is missing. What is missing is logged when it changes, not at each try.
    async fn wait(self, store: &Store, health: &Health, stop: &Stop) -> Result<(), StartError> {
        let mut backoff = Backoff::new();
        let mut told = String::new();
        loop {
            let missing = tokio::select! {
                biased;
                () = stop.begun() => return Err(StartError::Stopped),
                answer = timeout(ANSWER, self.missing(store, health)) => match answer {
                    Ok(answer) => answer?,
                    Err(_) => Some(Missing::Answer),
                },
            };
            let Some(missing) = missing else {
                if !told.is_empty() {
                    tracing::info!("what was waited for is there");
                }
                return Ok(());
            };
            if matches!(missing, Missing::Database(_) | Missing::Answer) {
                health.database_lost();
            }
            let description = format!("{missing:?}");
            if description != told {
                missing.log();
                told = description;
            }
            tokio::select! {
                biased;
                () = stop.begun() => return Err(StartError::Stopped),
                () = tokio::time::sleep(backoff.next()) => {}
            }
        }
    }
}

impl Missing {
    fn log(&self) {
        match self {
            Self::Database(error) => {
                let error: &dyn std::error::Error = error;
                tracing::warn!(error, "waiting for the database");
            }
            Self::Answer => tracing::warn!("waiting for an answer of the database"),
            Self::Extension => tracing::warn!("waiting for the extension vector to be made in the database"),
            Self::Schema { name } => tracing::info!(schema = name, "waiting for the schema to be made"),
            Self::Migrations { applied, expected } => {
                tracing::info!(applied, expected, "waiting for the admin service to migrate the database");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use testkit::RoleName;

    use super::*;

    fn health() -> Health {
        Health::new(schema::expected())
    }

    #[tokio::test]
    async fn a_service_that_is_started_first_waits_until_the_database_is_migrated() {
        let database = testkit::unmigrated_database().await.unwrap();
        let store = database.store(RoleName::Edge).unwrap();
        let (health, stop) = (health(), Stop::new());
        let waiting = tokio::spawn({
            let (store, health, stop) = (store.clone(), health.clone(), stop.clone());
            async move { wait_for_schema(&store, &health, &stop).await }
        });
        testkit::until("the database was seen", async || Ok(health.report().status == "migrating")).await.unwrap();
        assert!(!waiting.is_finished());
        schema::migrate(&database.config(RoleName::Owner), false).await.unwrap();
        waiting.await.unwrap().unwrap();
        let report = health.report();
        assert_eq!((report.applied, report.expected), (Some(schema::expected()), schema::expected()));
        store.close().await;
    }

    #[tokio::test]
    async fn a_process_that_waits_can_be_stopped() {
        let database = testkit::unmigrated_database().await.unwrap();
        let mut away = database.config(RoleName::Edge);
        let port = away.server().unwrap().1;
        away.url = away.url.expose().replace(&format!(":{port}/"), ":1/").into();
        let away = Store::new(&away, "test").unwrap();
        for store in [database.store(RoleName::Edge).unwrap(), away] {
            let (health, stop) = (health(), Stop::new());
            let asked = health.clone();
            let waiting = wait_for_schema(&store, &health, &stop);
            let stopping = async {
                testkit::until("the first answer", async || {
                    let report = asked.report();
                    Ok(report.applied.is_some() || !report.degraded.is_empty())
                })
                .await
                .unwrap();
                stop.begin();
            };
            let (waited, ()) = tokio::join!(waiting, stopping);
            assert!(matches!(waited, Err(StartError::Stopped)), "{waited:?}");
            assert!(!health.report().ready);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_is_asked_until_it_is_answered_refused_or_no_longer_of_use() {
        let stop = Stop::new();
        let asked = AtomicU32::new(0);
        let answer = persist(&stop, || {
            let times = asked.fetch_add(1, Ordering::Relaxed) + 1;
            std::future::ready(if times < 5 { Err(StoreError::Conflict) } else { Ok(times) })
        });
        assert_eq!(answer.await.unwrap(), 5);

        let refused = persist(&stop, || std::future::ready(Err::<(), _>(StoreError::NotFound))).await;
        assert!(matches!(refused, Err(StartError::Refused(StoreError::NotFound))), "{refused:?}");

        let stopped = persist(&stop, || {
            stop.begin();
            std::future::ready(Err::<(), _>(StoreError::Conflict))
        });
        assert!(matches!(stopped.await, Err(StartError::Stopped)));
        let silent = persist(&stop, std::future::pending::<Result<(), StoreError>>).await;
        assert!(matches!(silent, Err(StartError::Stopped)), "a question that nobody answers is no reason to stay");
    }

    #[tokio::test]
    async fn a_role_that_works_in_another_schema_is_refused() {
        let database = testkit::database().await.unwrap();
        let mut config = database.config(RoleName::Edge);
        config.schema = "elsewhere".to_owned();
        let store = Store::new(&config, "test").unwrap();
        let refused = wait_for_schema(&store, &health(), &Stop::new()).await.unwrap_err();
        assert!(refused.to_string().contains("works in schema public, but DB_SCHEMA says elsewhere"), "{refused}");
    }
}
