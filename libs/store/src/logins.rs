//! Attempts to sign in, and how many of them may fail.

use std::time::Duration;

use crate::{Store, StoreError};

/// How many attempts may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginLimits {
    /// For one name within a minute, from addresses that have not signed in lately.
    pub user_per_minute: i64,
    /// For one address within a minute.
    pub address_per_minute: i64,
    /// For one name from one address within [`LoginLimits::lockout`].
    pub lockout_failures: i64,
    /// How long such failures count.
    pub lockout: Duration,
}

/// Whether an attempt may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginAttempt {
    /// It may, and counts as failed until [`Store::login_succeeded`].
    Allowed {
        /// Which attempt.
        id: i64,
    },
    /// It may not.
    Throttled {
        /// When to try again.
        retry_after: Duration,
        /// Whether it is the lock-out that refuses it.
        locked: bool,
    },
}

impl Store {
    /// Enters an attempt to sign in, unless too many have failed. Attempts for one name or from one address go through
    /// here one at a time, whatever replica they reach, and count as failed from the start: guesses made at once do not
    /// get further than guesses made one after another.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn begin_login(
        &self,
        username: &str,
        address: &str,
        limits: &LoginLimits,
    ) -> Result<LoginAttempt, StoreError> {
        let mut transaction = self.begin().await?;
        sqlx::query!(
            "SELECT pg_advisory_xact_lock(lock)
               FROM (SELECT hashtextextended(current_schema() || ' login ' || word, 0) AS lock
                       FROM unnest(ARRAY['user ' || lower($1), 'address ' || $2]) AS word
                      ORDER BY 1) ordered",
            username,
            address
        )
        .fetch_all(&mut transaction)
        .await?;
        // A statement of its own: it sees what those who held the locks before have committed.
        let found = sqlx::query!(
            r#"SELECT count(*) FILTER (WHERE lower(username) = lower($1) AND attempted_at > now.at - interval '1 minute')
                          AS "user_failures!",
                      count(*) FILTER (WHERE address = $2 AND attempted_at > now.at - interval '1 minute')
                          AS "address_failures!",
                      count(*) FILTER (WHERE lower(username) = lower($1) AND address = $2) AS "pair_failures!",
                      extract(epoch FROM min(attempted_at) FILTER (WHERE lower(username) = lower($1) AND address = $2)
                          + make_interval(secs => $3) - max(now.at))::float8 AS lock_ends_in,
                      EXISTS (SELECT FROM login_attempts s
                               WHERE s.address = $2 AND lower(s.username) = lower($1) AND s.success
                                 AND s.attempted_at > clock_timestamp() - interval '30 days') AS "is_known!"
                 FROM (SELECT clock_timestamp() AS at) now, login_attempts a
                WHERE NOT a.success AND (lower(a.username) = lower($1) OR a.address = $2)
                  AND a.attempted_at > now.at - make_interval(secs => greatest($3, 60))"#,
            username,
            address,
            limits.lockout.as_secs_f64()
        )
        .fetch_one(&mut transaction)
        .await?;
        if found.pair_failures >= limits.lockout_failures {
            let seconds = found.lock_ends_in.unwrap_or_default().clamp(1.0, limits.lockout.as_secs_f64());
            return Ok(LoginAttempt::Throttled { retry_after: Duration::from_secs_f64(seconds), locked: true });
        }
        if found.address_failures >= limits.address_per_minute
            || (found.user_failures >= limits.user_per_minute && !found.is_known)
        {
            return Ok(LoginAttempt::Throttled { retry_after: Duration::from_secs(60), locked: false });
        }
        let id = sqlx::query_scalar!(
            "INSERT INTO login_attempts (username, address, success) VALUES (lower($1), $2, false) RETURNING id",
            username,
            address
        )
        .fetch_one(&mut transaction)
        .await?;
        transaction.commit().await?;
        Ok(LoginAttempt::Allowed { id })
    }

    /// An attempt turned out right.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn login_succeeded(&self, attempt: i64) -> Result<(), StoreError> {
        sqlx::query!("UPDATE login_attempts SET success = true WHERE id = $1", attempt).execute(self.pool()).await?;
        Ok(())
    }

    /// Removes up to `limit` attempts that no limit of logins looks at any more, failed ones after 24 hours, others after
    /// 30 days; returns how many.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn delete_old_login_attempts(&self, limit: i64) -> Result<u64, StoreError> {
        let done = sqlx::query!(
            "DELETE FROM login_attempts WHERE id IN (
                 SELECT id FROM login_attempts
                  WHERE attempted_at < clock_timestamp()
                                       - CASE WHEN success THEN interval '30 days' ELSE interval '24 hours' END
                  LIMIT $1)",
            limit
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }
}
