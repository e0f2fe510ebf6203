//! Connections: the pool of a process, and the ones it keeps apart.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use config::Pooler;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool};
use tokio::time::timeout;

use crate::bounded::{Behind, Bounded, Transaction};
use crate::error::{MigrateError, StoreError};

/// Kept apart from the pool, so that a full pool is not a death: one connection beats, one listens.
const SIDE_CONNECTIONS: u32 = 2;

/// For a connection to listen on, and for the first word on it.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);

/// A handle to the database. Cheap to clone; connections are made when they are first needed.
#[derive(Clone)]
pub struct Store {
    pool: PgPool,
    beat: PgPool,
    options: PgConnectOptions,
    acquire_timeout: Duration,
    schema: Arc<str>,
    pooler: Pooler,
}

/// What a notification is about. It is only a hint: whoever listens also polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// A change of configuration; see [`crate::config_log`].
    Config,
    /// A document is waiting.
    Documents,
}

impl Topic {
    /// The word in the channel's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Documents => "documents",
        }
    }
}

/// What the server is.
#[derive(Clone, Debug)]
pub struct DatabaseFacts {
    /// `server_version_num`, such as 160014.
    pub server_version: i32,
    /// `server_version`, such as 16.14.
    pub server_version_text: String,
    /// Version of the `vector` extension, if it is installed.
    pub vector_version: Option<String>,
    /// The schema unqualified names are made in.
    pub schema: Option<String>,
}

impl Store {
    /// Prepares the pool; nothing is sent yet, so this works while the database is away.
    ///
    /// # Errors
    /// [`StoreError::Unexpected`] when the URL is not one the driver accepts.
    pub fn new(config: &config::Database, application_name: &str) -> Result<Self, StoreError> {
        let mut options = PgConnectOptions::from_str(config.url.expose())?
            .application_name(application_name)
            // Poolers refuse start-up parameters they do not know.
            .extra_float_digits(None)
            .disable_statement_logging();
        if config.pooler == Pooler::Transaction {
            options = options.statement_cache_capacity(0);
        }
        let size = config.max_connections.saturating_sub(SIDE_CONNECTIONS).max(1);
        let pool = |size: u32| {
            PgPoolOptions::new()
                .max_connections(size)
                .acquire_timeout(config.acquire_timeout)
                .idle_timeout(Duration::from_secs(300))
                .max_lifetime(Duration::from_secs(1800))
                .connect_lazy_with(options.clone())
        };
        Ok(Self {
            pool: pool(size),
            beat: pool(1),
            options: options.clone(),
            acquire_timeout: config.acquire_timeout,
            schema: Arc::from(config.schema.as_str()),
            pooler: config.pooler,
        })
    }

    /// How a connection apart from the pool is made, and how long that may take.
    pub(crate) fn connect_options(&self) -> (PgConnectOptions, Duration) {
        (self.options.clone(), self.acquire_timeout)
    }

    /// For single statements.
    pub(crate) fn pool(&self) -> Bounded<'_> {
        Bounded { pool: &self.pool, behind: self.behind() }
    }

    /// For statements that say that this process lives.
    pub(crate) fn beat_pool(&self) -> Bounded<'_> {
        Bounded { pool: &self.beat, behind: self.behind() }
    }

    fn behind(&self) -> Behind {
        if self.has_sessions() { Behind::Sessions } else { Behind::Transactions }
    }

    pub(crate) async fn begin(&self) -> Result<Transaction, StoreError> {
        Ok(Transaction::begin(&self.pool, self.behind()).await?)
    }

    /// A transaction whose statements all see the same snapshot and change nothing.
    pub(crate) async fn begin_reading(&self) -> Result<Transaction, StoreError> {
        Ok(Transaction::begin_reading(&self.pool, self.behind()).await?)
    }

    /// Does work that somebody waits for: the answer is there within `DB_ACQUIRE_TIMEOUT`, or it is that the database is
    /// not available.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], otherwise as the work.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(self.acquire_timeout, work).await.map_err(|_| no_answer())?
    }

    /// How long a free connection is waited for (`DB_ACQUIRE_TIMEOUT`).
    #[must_use]
    pub fn acquire_timeout(&self) -> Duration {
        self.acquire_timeout
    }

    /// How many statements can be under way at once.
    #[must_use]
    pub fn pool_size(&self) -> u32 {
        self.pool.options().get_max_connections()
    }

    /// The schema of this installation.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Whether sessions survive a transaction: without that there is no LISTEN and no session lock.
    #[must_use]
    pub fn has_sessions(&self) -> bool {
        self.pooler != Pooler::Transaction
    }

    /// One round trip, to see whether the database answers.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query_scalar!("SELECT 1").fetch_one(self.beat_pool()).await?;
        Ok(())
    }

    /// Asks the server what it is.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn facts(&self) -> Result<DatabaseFacts, StoreError> {
        let row = sqlx::query!(
            r#"SELECT current_setting('server_version_num')::int AS "number!",
                      current_setting('server_version') AS "text!",
                      (SELECT extversion FROM pg_extension WHERE extname = 'vector') AS vector,
                      current_schema()::text AS schema"#
        )
        .fetch_one(self.pool())
        .await?;
        Ok(DatabaseFacts {
            server_version: row.number,
            server_version_text: row.text,
            vector_version: row.vector,
            schema: row.schema,
        })
    }

    /// Checks what every service needs of the server: its version, pgvector, and the schema its role works in.
    ///
    /// # Errors
    /// The first thing that is not right, with what to do about it.
    pub async fn check_server(&self) -> Result<DatabaseFacts, MigrateError> {
        let facts = self.facts().await?;
        check_facts(&facts, &self.schema)?;
        Ok(facts)
    }

    /// Starts listening to a topic on a connection of its own. `None` behind a transaction pooler, where sessions cannot
    /// listen: poll instead.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn listen(&self, topic: Topic) -> Result<Option<Listener>, StoreError> {
        if !self.has_sessions() {
            return Ok(None);
        }
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(LISTEN_PATIENCE)
            .connect_lazy_with(self.options.clone());
        let channel = sqlx::query_scalar!(r#"SELECT notification_channel($1) AS "channel!""#, topic.as_str())
            .fetch_one(self.pool())
            .await?;
        let mut inner = PgListener::connect_with(&pool).await?;
        timeout(LISTEN_PATIENCE, inner.listen(&channel)).await.map_err(|_| no_answer())??;
        Ok(Some(Listener { inner }))
    }

    /// Closes every connection; statements fail from here on.
    pub async fn close(&self) {
        self.pool.close().await;
        self.beat.close().await;
    }
}

/// A connection that hears notifications.
pub struct Listener {
    inner: PgListener,
}

impl Listener {
    /// Waits for the next notification. `Ok(false)` says that the connection was lost and made again, so something may
    /// have been missed: catch up by polling.
    ///
    /// # Errors
    /// When the connection cannot be made again; listen anew after a pause.
    pub async fn heard(&mut self) -> Result<bool, StoreError> {
        Ok(self.inner.try_recv().await?.is_some())
    }
}

fn no_answer() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

pub(crate) fn check_facts(facts: &DatabaseFacts, expected: &str) -> Result<(), MigrateError> {
    if facts.server_version < 140_000 {
        return Err(MigrateError::ServerTooOld { found: facts.server_version_text.clone() });
    }
    let Some(vector) = &facts.vector_version else {
        return Err(MigrateError::ExtensionMissing);
    };
    let mut parts = vector.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (0, 8) {
        return Err(MigrateError::ExtensionTooOld { found: vector.clone() });
    }
    match &facts.schema {
        Some(found) if found == expected => Ok(()),
        found => Err(MigrateError::WrongSchema {
            found: found.clone().unwrap_or_else(|| "(none)".to_owned()),
            expected: expected.to_owned(),
        }),
    }
}
