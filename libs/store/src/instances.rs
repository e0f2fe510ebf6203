//! Who is alive: one row for each life of each process, beaten on a connection of its own.

pub use domain::InstanceId;
use serde_json::Value;
use time::OffsetDateTime;

use crate::{Store, StoreError};

/// What a process says of itself when it starts.
#[derive(Clone, Debug)]
pub struct NewInstance {
    /// This life of the process.
    pub id: InstanceId,
    /// `edge`, `ingestion-worker` or `admin`.
    pub service: String,
    /// `host/pid/` and 8 random hexadecimal digits: what claims carry.
    pub owner: String,
    /// Host name.
    pub host: String,
    /// Version of the build.
    pub version: String,
    /// The schema version the build was made for.
    pub schema_version: i32,
    /// Listen addresses by name (`http`, `grpc`, `health`), as others reach them.
    pub addresses: Value,
    /// Ids of the sealing keys it can open.
    pub key_ids: Vec<String>,
}

/// A process as others see it.
#[derive(Clone, Debug)]
pub struct Instance {
    /// This life of the process.
    pub id: InstanceId,
    /// Which service it is.
    pub service: String,
    /// What its claims carry.
    pub owner: String,
    /// Version of the build.
    pub version: String,
    /// The schema version the build was made for.
    pub schema_version: i32,
    /// Listen addresses by name.
    pub addresses: Value,
    /// `joining`, `active`, `draining`, `left` or `lost`.
    pub state: String,
    /// When it started, by the database's clock.
    pub started_at: OffsetDateTime,
    /// Milliseconds since its last beat, by the database's clock.
    pub beat_age_ms: i64,
}

impl Store {
    /// Enters a process, `joining`.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn register_instance(&self, new: &NewInstance) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO instances (id, service, owner, host, version, schema_version, addresses, key_ids)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            new.id.0,
            new.service,
            new.owner,
            new.host,
            new.version,
            new.schema_version,
            new.addresses,
            &new.key_ids
        )
        .execute(self.beat_pool())
        .await?;
        Ok(())
    }

    /// Beats. The answer is the state others hold the process to be in; `None` when its row is gone. A process that
    /// reads `lost` was given up and must take a new id.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn beat_instance(&self, id: InstanceId) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            "UPDATE instances SET heartbeat_at = clock_timestamp(), beats = beats + 1 WHERE id = $1 RETURNING state",
            id.0
        )
        .fetch_optional(self.beat_pool())
        .await?)
    }

    /// Moves a process to another state, unless it has been given up.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn set_instance_state(&self, id: InstanceId, state: &str) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE instances SET state = $2, heartbeat_at = clock_timestamp() WHERE id = $1 AND state <> 'lost'",
            id.0,
            state
        )
        .execute(self.beat_pool())
        .await?;
        Ok(())
    }

    /// Processes that have not left, newest first.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_instances(&self) -> Result<Vec<Instance>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, service, owner, version, schema_version, addresses, state, started_at,
                      (extract(epoch FROM clock_timestamp() - heartbeat_at) * 1000)::bigint AS "beat_age_ms!"
                 FROM instances WHERE state <> 'left' ORDER BY started_at DESC LIMIT 1000"#
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Instance {
                id: InstanceId(row.id),
                service: row.service,
                owner: row.owner,
                version: row.version,
                schema_version: row.schema_version,
                addresses: row.addresses,
                state: row.state,
                started_at: row.started_at,
                beat_age_ms: row.beat_age_ms,
            })
            .collect())
    }
}
