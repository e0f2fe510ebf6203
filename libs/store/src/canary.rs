//! The sealed value that tells whether a process holds the key this database was written with.

use crate::{Store, StoreError};

const NAME: &str = "secret_canary";

impl Store {
    /// The canary of this database, after offering one for the case that there is none yet. Of many processes that offer
    /// at once exactly one decides, and every caller, the winner too, gets what is stored: check that.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn canary_or_insert(&self, offered: &[u8]) -> Result<Vec<u8>, StoreError> {
        sqlx::query!(
            "INSERT INTO instance_settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            NAME,
            offered
        )
        .execute(self.pool())
        .await?;
        Ok(sqlx::query_scalar!("SELECT value FROM instance_settings WHERE name = $1", NAME)
            .fetch_one(self.pool())
            .await?)
    }
}
