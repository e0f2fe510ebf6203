//! Who did what: the entry that every write of the admin service carries.
//!
//! A statement that writes takes the entry as one JSON parameter and hands it to the function `record_audit` or
//! `record_change` together with the row's id, so that the write and its entry are one transaction.

use domain::UserId;
use serde_json::{Value, json};

use crate::{Store, StoreError};

/// Who acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The person, if it is one.
    pub user: Option<UserId>,
    /// The name to show: a user name, or that of a command.
    pub name: String,
    /// The address the act came from.
    pub address: Option<String>,
}

impl Actor {
    /// An actor that is no person: a command, a start, a test.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { user: None, name: name.to_owned(), address: None }
    }
}

/// What one write says about itself in the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Who.
    pub actor: Actor,
    /// What, such as `project.create`.
    pub action: &'static str,
    /// An object with more about it; never a secret, a file name or content.
    pub details: Value,
}

impl AuditEntry {
    /// An entry without details.
    #[must_use]
    pub fn new(actor: Actor, action: &'static str) -> Self {
        Self { actor, action, details: json!({}) }
    }

    /// The same with details.
    #[must_use]
    pub fn with(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// What `record_audit` reads.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "actor_user_id": self.actor.user.map(|user| user.0),
            "actor": self.actor.name,
            "address": self.actor.address,
            "action": self.action,
            "details": self.details,
        })
    }
}

impl Store {
    /// Appends an entry for an act that writes nothing else.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn record_audit(&self, kind: &str, row_id: Option<i64>, entry: &AuditEntry) -> Result<(), StoreError> {
        sqlx::query_scalar!("SELECT record_audit($1, $2, $3)", kind, row_id, entry.to_json())
            .fetch_one(self.pool())
            .await?;
        Ok(())
    }
}
