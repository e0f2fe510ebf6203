//! Sessions: rows, so that one begun at one replica is known to every other.

use std::time::Duration;

use domain::{KeyHash, Role, UserId};
use time::OffsetDateTime;

use crate::audit::AuditEntry;
use crate::users::User;
use crate::{Store, StoreError};

/// A session that has not ended.
#[derive(Clone, Debug)]
pub struct Session {
    /// Whose.
    pub user: User,
    /// When it ends.
    pub expires_at: OffsetDateTime,
}

impl Store {
    /// Begins a session of a person and notes their login. Only the hash of its token is stored.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the person is gone or not active any more.
    pub async fn create_session(
        &self,
        user: UserId,
        token: &KeyHash,
        lasts: Duration,
        entry: &AuditEntry,
    ) -> Result<OffsetDateTime, StoreError> {
        let begun = sqlx::query!(
            r#"WITH owner AS (
                   UPDATE users SET last_login_at = clock_timestamp() WHERE id = $1 AND active RETURNING id),
               begun AS (
                   INSERT INTO sessions (user_id, token_hash, expires_at)
                   SELECT id, $2, clock_timestamp() + make_interval(secs => $3) FROM owner
                   RETURNING expires_at)
               SELECT expires_at AS "expires_at!", record_audit('user', $1, $4) AS entry FROM begun"#,
            user.0,
            token.as_bytes().as_slice(),
            lasts.as_secs_f64(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        begun.map(|begun| begun.expires_at).ok_or(StoreError::NotFound)
    }

    /// Finds a session that has not ended, of a person who may act now.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn find_session(&self, token: &KeyHash) -> Result<Option<Session>, StoreError> {
        let row = sqlx::query!(
            "SELECT u.id, u.username, u.role, u.active, u.last_login_at, s.expires_at
               FROM sessions s JOIN users u ON u.id = s.user_id
              WHERE s.token_hash = $1 AND s.expires_at > clock_timestamp() AND u.active",
            token.as_bytes().as_slice()
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|row| Session {
            user: User {
                id: UserId(row.id),
                username: row.username,
                role: Role::parse(&row.role).unwrap_or(Role::Viewer),
                active: row.active,
                last_login_at: row.last_login_at,
            },
            expires_at: row.expires_at,
        }))
    }

    /// Ends a session. Ending one that has ended changes nothing.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delete_session(&self, token: &KeyHash, entry: &AuditEntry) -> Result<(), StoreError> {
        sqlx::query_scalar!(
            "WITH ended AS (DELETE FROM sessions WHERE token_hash = $1 RETURNING user_id)
             SELECT record_audit('user', user_id, $2) FROM ended",
            token.as_bytes().as_slice(),
            entry.to_json()
        )
        .fetch_optional(self.pool())
        .await?;
        Ok(())
    }

    /// Removes up to `limit` sessions that have ended; returns how many.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delete_expired_sessions(&self, limit: i64) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "DELETE FROM sessions WHERE id IN (
                 SELECT id FROM sessions WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1)",
            limit
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }
}
