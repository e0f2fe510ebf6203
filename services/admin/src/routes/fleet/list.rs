//! `GET /fleet`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use domain::InstanceId;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

use crate::app::App;
use crate::error::ApiError;

#[derive(Serialize)]
pub(crate) struct Fleet {
    instances: Vec<View>,
}

#[derive(Serialize)]
struct View {
    id: InstanceId,
    service: String,
    owner: String,
    version: String,
    schema_version: i32,
    addresses: Value,
    state: String,
    #[serde(with = "time::serde::rfc3339")]
    started_at: OffsetDateTime,
    /// Since its last beat, by the database's clock.
    beat_age_ms: i64,
}

/// Every process that has not left, newest first.
pub(crate) async fn handle(State(app): State<Arc<App>>) -> Result<Json<Fleet>, ApiError> {
    let instances = app.store.list_instances().await?.into_iter().map(|instance| View {
        id: instance.id,
        service: instance.service,
        owner: instance.owner,
        version: instance.version,
        schema_version: instance.schema_version,
        addresses: instance.addresses,
        state: instance.state,
        started_at: instance.started_at,
        beat_age_ms: instance.beat_age_ms,
    });
    Ok(Json(Fleet { instances: instances.collect() }))
}
