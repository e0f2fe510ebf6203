//! The daily partitions of the request log.

use crate::{Store, StoreError};

/// How many days the log is ready for.
const DAYS_AHEAD: i32 = 7;

impl Store {
    /// Makes the log's partitions of today and the days ahead (UTC) that are missing. Any service may, at any time.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn ensure_log_days(&self) -> Result<(), StoreError> {
        for ahead in 0..=DAYS_AHEAD {
            // Each day in a transaction of its own: attaching one locks the log for a moment.
            sqlx::query!("SELECT ensure_log_day((clock_timestamp() AT TIME ZONE 'UTC')::date + $1::int)", ahead)
                .execute(self.pool())
                .await?;
        }
        Ok(())
    }
}
