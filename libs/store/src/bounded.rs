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
use sqlx::{Either, Error, Execute, Executor, PgConnection, PgPool, Postgres, SqlStr};
use tokio::time::timeout;

/// Longer than the server lets a statement of ours run (`statement_timeout`, 30 s).
const PATIENCE: Duration = Duration::from_secs(35);

/// A pool, for single statements. One that is not answered in time, or that its caller does not wait for any more, takes
/// its connection with it.
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
    connection: PoolConnection<Postgres>,
    answered: bool,
}

impl Borrowed {
    async fn of(pool: &PgPool) -> Result<Self, Error> {
        Ok(Self { connection: pool.acquire().await?, answered: true })
    }

    async fn wait<'a, T>(
        &'a mut self,
        statement: impl FnOnce(&'a mut PgConnection) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        self.answered = false;
        let answer = timeout(PATIENCE, statement(&mut self.connection)).await;
        self.answered = answer.is_ok();
        answer.map_err(|_| Error::Io(ErrorKind::TimedOut.into()))?
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.answered {
            self.connection.close_on_drop();
        }
    }
}
