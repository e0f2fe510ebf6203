//! Usage by day, computed from the log.

use std::time::Duration;

use time::{Date, OffsetDateTime};

use crate::{Store, StoreError};

/// How long the rollups of one day may take: minutes only for a day of a hundred million calls.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// What has to be rolled up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDays {
    /// Until when settled calls are in the rollups, once all these days are rolled up.
    pub settled_until: OffsetDateTime,
    /// UTC days that calls were settled into since the last time, oldest first.
    pub days: Vec<Date>,
}

impl Store {
    /// Finds the days whose rollups are not up to date.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_due_usage_days(&self) -> Result<DueDays, StoreError> {
        let row = sqlx::query!(
            r#"SELECT settled_until AS "settled_until!",
                      ARRAY(SELECT DISTINCT d FROM unnest(days) d ORDER BY d) AS "days!"
                 FROM due_usage_days_v1()"#
        )
        .fetch_one(self.pool())
        .await?;
        Ok(DueDays { settled_until: row.settled_until, days: row.days })
    }

    /// Computes the rollups of a day anew, in one transaction. `false` says that another process is at it, and that
    /// nothing was done. Days that the log has no more are left as they are.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn roll_up_usage_day(&self, day: Date) -> Result<bool, StoreError> {
        let mut transaction = self.begin_within(PATIENCE).await?;
        let done = sqlx::query_scalar!(r#"SELECT roll_up_usage_day_v1($1) AS "done!""#, day)
            .fetch_one(&mut transaction)
            .await?;
        transaction.commit().await?;
        Ok(done)
    }

    /// Says that all of the due days are rolled up.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn finish_usage_rollup(&self, settled_until: OffsetDateTime) -> Result<(), StoreError> {
        sqlx::query!("SELECT finish_usage_rollup_v1($1)", settled_until).execute(self.pool()).await?;
        Ok(())
    }
}
