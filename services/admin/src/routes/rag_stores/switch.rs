//! The change of a store's embedding connection, and how far it is.

use domain::{ConnectionId, StoreId};
use serde::Serialize;
use serde_json::json;
use store::Reach;
use store::document_stores::DocumentStore;
use store::switches::{NewEmbedding, SwitchState};
use time::OffsetDateTime;

use super::probe::probe_width;
use super::{View, read};
use crate::app::App;
use crate::auth::Deed;
use crate::error::ApiError;

/// A store with the switch that is under way.
#[derive(Serialize)]
pub(crate) struct Shown {
    #[serde(flatten)]
    pub(super) store: View,
    /// Searches use `embedding_connection_id` until it is done; then it is `null` again.
    embedding_switch: Option<SwitchView>,
}

#[derive(Serialize)]
struct SwitchView {
    embedding_connection_id: ConnectionId,
    dimensions: i32,
    /// `queued` until a worker takes it, `building` while one is at it, `waiting` while it waits for what `error` says,
    /// and `failed` when it needs somebody to ask for it again.
    status: &'static str,
    chunks_done: i64,
    chunks_total: i64,
    error: Option<Failure>,
    #[serde(with = "time::serde::rfc3339")]
    due_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    started_at: OffsetDateTime,
}

#[derive(Serialize)]
struct Failure {
    code: String,
    message: Option<String>,
}

impl From<SwitchState> for SwitchView {
    fn from(switch: SwitchState) -> Self {
        let status = match (switch.status.as_str(), switch.is_claimed, &switch.error_code) {
            ("failed", ..) => "failed",
            (_, true, _) => "building",
            (_, false, Some(_)) => "waiting",
            (_, false, None) => "queued",
        };
        let message = switch.error_text;
        Self {
            embedding_connection_id: switch.connection,
            dimensions: switch.width,
            status,
            chunks_done: switch.chunks_done,
            chunks_total: switch.chunks_total,
            error: switch.error_code.map(|code| Failure { code, message }),
            due_at: switch.run_at,
            started_at: switch.started_at,
        }
    }
}

/// One store within reach and its switch, or the error that there is none.
pub(super) async fn show(app: &App, reach: Reach, id: StoreId) -> Result<Shown, ApiError> {
    let store = View::from(read(app, reach, id).await?);
    let embedding_switch = app.store.find_embedding_switch(id).await?.map(SwitchView::from);
    Ok(Shown { store, embedding_switch })
}

/// What a change asks of the vectors of a store.
pub(super) enum Wish {
    /// Nothing.
    Keep,
    /// The connection in use, though another was asked for before.
    Return,
    /// Another connection; its model has answered.
    Another(NewEmbedding),
}

/// What is to be done so that a store is embedded by a connection. A switch to it that is going on is left alone; one
/// that has failed is begun again.
pub(super) async fn wish(app: &App, now: &DocumentStore, wanted: ConnectionId) -> Result<Wish, ApiError> {
    let going_on = app.store.find_embedding_switch(now.id).await?;
    if wanted == now.connection {
        return Ok(if going_on.is_some() { Wish::Return } else { Wish::Keep });
    }
    if going_on.is_some_and(|switch| switch.connection == wanted && switch.status != "failed") {
        return Ok(Wish::Keep);
    }
    let connection = app
        .store
        .find_connection(wanted)
        .await?
        .ok_or_else(|| ApiError::invalid("embedding_connection_id: there is no such connection"))?;
    let width = probe_width(app, &connection).await?;
    app.store.ensure_vector_table(width).await?;
    Ok(Wish::Another(NewEmbedding {
        connection: connection.id,
        base_url: connection.settings.base_url,
        model_name: connection.settings.model_name,
        width,
    }))
}

/// Does it.
pub(super) async fn grant(app: &App, reach: Reach, store: StoreId, wish: &Wish, deed: &Deed) -> Result<(), ApiError> {
    match wish {
        Wish::Keep => {}
        Wish::Return => {
            let entry = deed.entry(json!({ "embedding_switch": "cancelled" }));
            app.store.cancel_embedding_switch(reach, store, &entry).await?;
        }
        Wish::Another(new) => {
            let about = json!({ "embedding_connection_id": new.connection, "dimensions": new.width });
            app.store.begin_embedding_switch(reach, store, new, &deed.entry(about)).await?;
        }
    }
    Ok(())
}
