//! Statements that end although the server has gone silent.
//!
//! A network that drops packets, or a machine that has lost its power, leaves connections that nobody answers and nobody
//! closes. The driver would wait for them until the system gives up, a quarter of an hour or more, and keep their places
//! in the pool for as long.

use std::io::ErrorKind;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Connection, Either, Error, Execute, Executor, PgConnection, PgPool, Postgres, SqlStr};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Longer than the server lets a statement of ours run (`statement_timeout`, 30 s).
const PATIENCE: Duration = Duration::from_secs(35);

/// For a statement that its caller does not wait for any more. Most need milliseconds, so that clients who hang up do not
/// cost a connection each.
const LEFT: Duration = Duration::from_secs(2);

/// A pool, for single statements. One that is not answered in time takes its connection with it; one that its caller
/// does not wait for any more has a little longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounded<'a>(pub(crate) &'a PgPool);

impl<'c> Executor<'c> for Bounded<'c> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let answer = async move {
            let mut borrowed = Borrowed::of(self.0).await?;
            let steps: Vec<_> = borrowed.wait(|connection| connection.fetch_many(query).try_collect().boxed()).await?;
            Ok::<_, Error>(stream::iter(steps.into_iter().map(Ok)))
        };
        stream::once(answer).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move { Borrowed::of(self.0).await?.wait(|connection| connection.fetch_optional(query)).await })
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'c: 'e,
    {
        Box::pin(async move {
            Borrowed::of(self.0).await?.wait(|connection| connection.prepare_with(sql, parameters)).await
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, Error>>
    where
        'c: 'e,
    {
        Box::pin(async move { Borrowed::of(self.0).await?.wait(|connection| connection.describe(sql)).await })
    }
}

/// A connection of the pool that goes back to it only if it was answered.
struct Borrowed {
    /// Taken when this is dropped only.
    connection: Option<PoolConnection<Postgres>>,
    state: State,
}

enum State {
    Answered,
    Waiting,
    Silent,
}

impl Borrowed {
    async fn of(pool: &PgPool) -> Result<Self, Error> {
        Ok(Self { connection: Some(pool.acquire().await?), state: State::Answered })
    }

    async fn wait<'a, T>(
        &'a mut self,
        statement: impl FnOnce(&'a mut PgConnection) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let connection = self.connection.as_mut().ok_or(Error::PoolClosed)?;
        self.state = State::Waiting;
        let answer = timeout(PATIENCE, statement(connection)).await;
        self.state = if answer.is_ok() { State::Answered } else { State::Silent };
        answer.map_err(|_| Error::Io(ErrorKind::TimedOut.into()))?
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        match (&self.state, Handle::try_current()) {
            (State::Answered, _) => {}
            (State::Waiting, Ok(runtime)) => {
                runtime.spawn(finish(connection));
            }
            (State::Waiting, Err(_)) | (State::Silent, _) => connection.close_on_drop(),
        }
    }
}

/// Reads what is left of an answer. The pool counts the connection as taken meanwhile, and waits for it when it is
/// closed.
async fn finish(mut connection: PoolConnection<Postgres>) {
    if !matches!(timeout(LEFT, connection.ping()).await, Ok(Ok(()))) {
        connection.close_on_drop();
    }
}
