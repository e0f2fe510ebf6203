//! People who sign in to the admin service.

use domain::{Role, Secret, UserId};
use time::OffsetDateTime;

use crate::audit::AuditEntry;
use crate::{Store, StoreError};

/// A person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Who.
    pub id: UserId,
    /// The name they sign in with.
    pub username: String,
    /// What they may do.
    pub role: Role,
    /// Whether they may sign in.
    pub active: bool,
    /// When they last did.
    pub last_login_at: Option<OffsetDateTime>,
}

impl Store {
    /// Whether there is anybody at all.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn has_users(&self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM users) AS "exists!""#).fetch_one(self.pool()).await?)
    }

    /// Makes the first person, an administrator. However many processes and calls try at once, exactly one does; the
    /// others get `None`, and so does everybody once there is a user.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn create_first_user(
        &self,
        username: &str,
        password_hash: &Secret,
        entry: &AuditEntry,
    ) -> Result<Option<UserId>, StoreError> {
        let mut transaction = self.begin().await?;
        // Whoever waits here reads the table in the next statement, when the winner has committed.
        sqlx::query!("SELECT pg_advisory_xact_lock(advisory_class(), 3)").execute(&mut transaction).await?;
        let made = sqlx::query!(
            r#"WITH made AS (
                   INSERT INTO users (username, password_hash, role)
                   SELECT $1, $2, 'admin' WHERE NOT EXISTS (SELECT FROM users)
                   RETURNING id)
               SELECT id AS "id!", record_change('user', id, $3) AS sequence FROM made"#,
            username,
            password_hash.expose(),
            entry.to_json()
        )
        .fetch_optional(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(made.map(|made| UserId(made.id)))
    }

    /// Finds a person by the name they sign in with, ignoring case, with the hash of their password if they have one.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_user_to_sign_in(&self, username: &str) -> Result<Option<(User, Option<Secret>)>, StoreError> {
        let row = sqlx::query!(
            "SELECT id, username, password_hash, role, active, last_login_at FROM users
              WHERE lower(username) = lower($1)",
            username
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| {
            let user = User {
                id: UserId(row.id),
                username: row.username,
                // A role that this build does not know may do the least.
                role: Role::parse(&row.role).unwrap_or(Role::Viewer),
                active: row.active,
                last_login_at: row.last_login_at,
            };
            (user, row.password_hash.map(Secret::new))
        }))
    }
}
