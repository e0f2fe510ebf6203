//! Statements that end although the server has gone silent.
//!
//! A network that drops packets, or a machine that has lost its power, leaves connections that nobody answers and nobody
//! closes. The driver would wait for them until the system gives up, a quarter of an hour or more, and keep their places
//! in the pool for as long.

use std::io::ErrorKind;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use sqlx::error::BoxDynError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Either, Error, Execute, Executor, PgConnection, PgPool, Postgres, SqlStr};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Longer than the server lets a statement of ours run (`statement_timeout`, 30 s).
const PATIENCE: Duration = Duration::from_secs(35);
/// How much longer a statement is waited for than the server may work at it.
const MARGIN: Duration = Duration::from_secs(5);

/// For a statement that its caller does not wait for any more, and for a connection on its way back to the pool, which the
/// driver asks for a sign of life. Most need milliseconds, so that clients who hang up do not cost a connection each.
const LEFT: Duration = Duration::from_secs(2);

/// What is behind the connections of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// A session of the server each: statements are prepared once.
    Sessions,
    /// A pooler that gives out a session for one transaction at a time. Preparing a statement and running it are two
    /// messages, and without a transaction around them each may meet another session; a name that a statement is kept
    /// under would mean something else there, or be taken.
    Transactions,
}

/// A pool, for single statements. One that is not answered in time takes its connection with it; one that its caller
/// does not wait for any more has a little longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounded<'a> {
    pub(crate) pool: &'a PgPool,
    pub(crate) behind: Behind,
}

impl<'c> Executor<'c> for Bounded<'c> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        all_at_once(async move {
            if self.behind == Behind::Sessions {
                return Borrowed::of(self.pool).await?.fetch_many(query).await;
            }
            let mut transaction = Transaction::begin(self.pool, self.behind).await?;
            let steps = transaction.borrowed.fetch_many(Unkept(query)).await?;
            transaction.commit().await?;
            Ok(steps)
        })
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move {
            if self.behind == Behind::Sessions {
                return Borrowed::of(self.pool).await?.wait(|connection| connection.fetch_optional(query)).await;
            }
            let mut transaction = Transaction::begin(self.pool, self.behind).await?;
            let row = transaction.borrowed.wait(|connection| connection.fetch_optional(Unkept(query))).await?;
            transaction.commit().await?;
            Ok(row)
        })
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'c: 'e,
    {
        Box::pin(async move {
            Borrowed::of(self.pool).await?.wait(|connection| connection.prepare_with(sql, parameters)).await
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, Error>>
    where
        'c: 'e,
    {
        Box::pin(async move { Borrowed::of(self.pool).await?.wait(|connection| connection.describe(sql)).await })
    }
}

/// A transaction, each statement of which is answered in time or is its last one. Dropped before its commit it is rolled
/// back, as far as it is answered.
#[derive(Debug)]
pub(crate) struct Transaction {
    borrowed: Borrowed,
    behind: Behind,
    is_open: bool,
}

impl Transaction {
    pub(crate) async fn begin(pool: &PgPool, behind: Behind) -> Result<Self, Error> {
        Self::begin_as(pool, behind, "BEGIN").await
    }

    /// All statements of it see the database as it was at the first.
    pub(crate) async fn begin_reading(pool: &PgPool, behind: Behind) -> Result<Self, Error> {
        Self::begin_as(pool, behind, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await
    }

    async fn begin_as(pool: &PgPool, behind: Behind, word: &'static str) -> Result<Self, Error> {
        let mut transaction = Self { borrowed: Borrowed::of(pool).await?, behind, is_open: true };
        transaction.say(word).await?;
        Ok(transaction)
    }

    /// Waits so much longer for each statement than the server may work at it.
    pub(crate) fn beyond(&mut self, statement_timeout: Duration) {
        self.borrowed.patience = statement_timeout + MARGIN;
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        self.end("COMMIT").await
    }

    pub(crate) async fn rollback(self) -> Result<(), Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, word: &'static str) -> Result<(), Error> {
        self.say(word).await?;
        self.is_open = false;
        Ok(())
    }

    async fn say(&mut self, word: &'static str) -> Result<(), Error> {
        self.borrowed.wait(|connection| sqlx::raw_sql(word).execute(connection).boxed()).await.map(drop)
    }
}

impl<'c> Executor<'c> for &'c mut Transaction {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        match self.behind {
            Behind::Sessions => all_at_once(self.borrowed.fetch_many(query)),
            Behind::Transactions => all_at_once(self.borrowed.fetch_many(Unkept(query))),
        }
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        match self.behind {
            Behind::Sessions => Box::pin(self.borrowed.wait(|connection| connection.fetch_optional(query))),
            Behind::Transactions => Box::pin(self.borrowed.wait(|connection| connection.fetch_optional(Unkept(query)))),
        }
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'c: 'e,
    {
        Box::pin(self.borrowed.wait(|connection| connection.prepare_with(sql, parameters)))
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, Error>>
    where
        'c: 'e,
    {
        Box::pin(self.borrowed.wait(|connection| connection.describe(sql)))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.is_open && !matches!(self.borrowed.state, State::Silent) {
            self.borrowed.state = State::Open;
        }
    }
}

/// A statement that the server is not to keep under a name.
struct Unkept<E>(E);

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for Unkept<E> {
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.0.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}

type Step = Either<PgQueryResult, PgRow>;

fn all_at_once<'e>(
    steps: impl Future<Output = Result<Vec<Step>, Error>> + Send + 'e,
) -> BoxStream<'e, Result<Step, Error>> {
    stream::once(steps).map_ok(|steps| stream::iter(steps.into_iter().map(Ok))).try_flatten().boxed()
}

/// A connection of the pool that goes back to it only if it was answered.
#[derive(Debug)]
struct Borrowed {
    /// Taken when this is dropped only.
    connection: Option<PoolConnection<Postgres>>,
    state: State,
    /// How long each statement is waited for.
    patience: Duration,
}

#[derive(Debug)]
enum State {
    Answered,
    Waiting,
    /// In a transaction that is to be rolled back.
    Open,
    Silent,
}

impl Borrowed {
    async fn of(pool: &PgPool) -> Result<Self, Error> {
        Ok(Self { connection: Some(pool.acquire().await?), state: State::Answered, patience: PATIENCE })
    }

    async fn fetch_many<'q>(&mut self, query: impl Execute<'q, Postgres> + 'q) -> Result<Vec<Step>, Error> {
        self.wait(|connection| connection.fetch_many(query).try_collect().boxed()).await
    }

    async fn wait<'a, T>(
        &'a mut self,
        statement: impl FnOnce(&'a mut PgConnection) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let connection = self.connection.as_mut().ok_or(Error::PoolClosed)?;
        self.state = State::Waiting;
        let answer = timeout(self.patience, statement(connection)).await;
        self.state = if answer.is_ok() { State::Answered } else { State::Silent };
        answer.map_err(|_| Error::Io(ErrorKind::TimedOut.into()))?
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        match (&self.state, Handle::try_current()) {
            (State::Answered | State::Waiting, Ok(runtime)) => {
                runtime.spawn(give_back(connection));
            }
            (State::Open, Ok(runtime)) => {
                runtime.spawn(roll_back(connection));
            }
            (State::Silent, _) | (_, Err(_)) => connection.close_on_drop(),
        }
    }
}

/// Reads what is left of an answer. The pool counts the connection as taken meanwhile, and waits for it when it is
/// closed.
async fn give_back(mut connection: PoolConnection<Postgres>) {
    // What the driver would do by itself, and for as long as it takes.
    let _ = timeout(LEFT, connection.return_to_pool()).await;
}

async fn roll_back(mut connection: PoolConnection<Postgres>) {
    let answer = timeout(LEFT, sqlx::raw_sql("ROLLBACK").execute(&mut *connection)).await;
    if matches!(answer, Ok(Ok(_))) {
        give_back(connection).await;
    } else {
        connection.close_on_drop();
    }
}
