//! A session that somebody has forgotten.

use sqlx::{PgPool, Postgres, Transaction};

use super::TestDatabase;

/// A transaction that has a snapshot and an id of its own and does nothing more, as a forgotten `psql` or a long backup
/// does: until it ends, no version of a row that it might still see is removed.
pub struct OpenTransaction {
    transaction: Transaction<'static, Postgres>,
    _pool: PgPool,
}

impl OpenTransaction {
    /// Ends it.
    ///
    /// # Errors
    /// When the connection was lost.
    pub async fn release(self) -> anyhow::Result<()> {
        Ok(self.transaction.rollback().await?)
    }
}

impl TestDatabase {
    /// Begins a transaction that stays open until it is released or dropped.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn leave_transaction_open(&self) -> anyhow::Result<OpenTransaction> {
        let pool = self.superuser_pool().await?;
        let mut transaction = pool.begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *transaction).await?;
        sqlx::query("SELECT pg_current_xact_id(), count(*) FROM tier_state").execute(&mut *transaction).await?;
        Ok(OpenTransaction { transaction, _pool: pool })
    }
}
