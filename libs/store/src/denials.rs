//! Denials by minute. A denied call leaves no other trace in the database.

use std::time::Duration;

use domain::Tier;

use crate::{Store, StoreError};

/// Denials of one tier for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialCount {
    /// Whether a project or a key was denied.
    pub tier: Tier,
    /// Which one; 0 stands for those that were too many to be told apart.
    pub id: i64,
    /// The code that the clients were told.
    pub code: String,
    /// How many.
    pub denials: i64,
    /// How long ago the last of them was.
    pub age: Duration,
}

impl Store {
    /// Adds counts to the minutes they belong to. A batch whose answer was lost may have been added: sending it again
    /// counts it twice.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn add_denials(&self, counts: &[DenialCount]) -> Result<(), StoreError> {
        if counts.is_empty() {
            return Ok(());
        }
        let tiers: Vec<i16> = counts.iter().map(|count| tier_number(count.tier)).collect();
        let ids: Vec<i64> = counts.iter().map(|count| count.id).collect();
        let codes: Vec<String> = counts.iter().map(|count| count.code.clone()).collect();
        let denials: Vec<i64> = counts.iter().map(|count| count.denials).collect();
        let ages: Vec<i64> =
            counts.iter().map(|count| i64::try_from(count.age.as_millis()).unwrap_or(i64::MAX)).collect();
        sqlx::query!("SELECT add_denials_v1($1, $2, $3, $4, $5)", &tiers, &ids, &codes, &denials, &ages)
            .execute(self.pool())
            .await?;
        Ok(())
    }
}

/// How the ledger's tables number tiers.
pub(crate) fn tier_number(tier: Tier) -> i16 {
    match tier {
        Tier::Project => 1,
        Tier::Key => 2,
    }
}
