//! Who is alive: one row for each life of each process, beaten on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

pub use domain::InstanceId;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::{Store, StoreError};

/// A process that was given up finds out by its next beat, which is due at once.
const NEW_ID_PATIENCE: Duration = Duration::from_secs(2);

/// How a process stands with the others, as its ledger needs to know it.
#[derive(Clone, Debug)]
pub struct Standing {
    ids: watch::Receiver<InstanceId>,
    missed_beats: watch::Receiver<u64>,
    doubts: Arc<Notify>,
}

impl Standing {
    /// A standing that follows these: the id of this life, the number of beats that did not reach the database, and whom
    /// to tell that the others may have given the process up.
    #[must_use]
    pub fn new(ids: watch::Receiver<InstanceId>, missed_beats: watch::Receiver<u64>, doubts: Arc<Notify>) -> Self {
        Self { ids, missed_beats, doubts }
    }

    /// The id of this life of the process, for as long as nobody gives it up.
    #[must_use]
    pub fn id(&self) -> InstanceId {
        *self.ids.borrow()
    }

    /// How many beats have not reached the database so far.
    #[must_use]
    pub fn missed_beats(&self) -> u64 {
        *self.missed_beats.borrow()
    }

    /// Says that the others have given `id` up, and waits a while for the new one.
    pub async fn doubted(&mut self, id: InstanceId) {
        self.doubts.notify_one();
        // Without a new id the next call fails as this one did.
        let _ = timeout(NEW_ID_PATIENCE, self.ids.wait_for(|current| *current != id)).await;
    }
}

/// The beats of a process, as the others read them.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// Whose.
    pub id: InstanceId,
    /// How many so far.
    pub beats: i64,
}

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

    /// The beats of all processes that are neither gone nor given up, and the database's clock in microseconds since 1970.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn list_beats(&self) -> Result<(i64, Vec<Beat>), StoreError> {
        let rows = sqlx::query!(
            r#"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS "now_us!", i.id AS "id?",
                      i.beats AS "beats?"
                 FROM (SELECT) always LEFT JOIN instances i ON i.state NOT IN ('left', 'lost')"#
        )
        .fetch_all(self.pool())
        .await?;
        let now_us = rows.first().map_or(0, |row| row.now_us);
        let beats = rows.into_iter().filter_map(|row| Some(Beat { id: InstanceId(row.id?), beats: row.beats? }));
        Ok((now_us, beats.collect()))
    }

    /// Gives a process up: from here on it may not admit under this id. Nothing happens if it has beaten since it was
    /// read, or if `own`, who says so, was given up itself. Returns whether it was done.
    ///
    /// # Errors
    /// As for any statement.
    pub async fn mark_instance_lost(&self, own: InstanceId, read: Beat) -> Result<bool, StoreError> {
        let done = sqlx::query!(
            "UPDATE instances SET state = 'lost'
              WHERE id = $1 AND beats = $2 AND state NOT IN ('left', 'lost') AND id <> $3
                AND EXISTS (SELECT FROM instances o WHERE o.id = $3 AND o.state NOT IN ('left', 'lost'))",
            read.id.0,
            read.beats,
            own.0
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() > 0)
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
