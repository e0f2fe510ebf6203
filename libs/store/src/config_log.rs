//! The log of configuration changes, which edges tail to forget what they have cached.

use crate::{Store, StoreError};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// Its place in the order of all changes, without gaps for a reader.
    pub sequence: i64,
    /// What was changed: `project`, `api_key`, `route`, `connection`, `store`, `user` or `price`.
    pub kind: String,
    /// Which one.
    pub row_id: i64,
}

impl Store {
    /// The sequence of the newest change.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn config_sequence(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar!("SELECT sequence FROM config_head").fetch_one(self.pool()).await?)
    }

    /// Changes after a sequence, oldest first, at most `limit`.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_config_changes(&self, after: i64, limit: i64) -> Result<Vec<ConfigChange>, StoreError> {
        Ok(sqlx::query_as!(
            ConfigChange,
            "SELECT sequence, kind, row_id FROM config_changes WHERE sequence > $1 ORDER BY sequence LIMIT $2",
            after,
            limit
        )
        .fetch_all(self.pool())
        .await?)
    }
}
