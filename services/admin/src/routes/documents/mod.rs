//! Documents and their uploads.

mod backlog;
pub(crate) mod delete;
mod form;
pub(crate) mod get;
pub(crate) mod list;
mod receive;
pub(crate) mod reprocess;
pub(crate) mod upload;

use domain::DocumentId;
use serde::Serialize;
use serde_json::Value;
use store::Reach;
use store::documents::{Document, QueuePlace};
use time::OffsetDateTime;

pub(crate) use self::backlog::Backlog;
use crate::app::App;
use crate::error::ApiError;

/// A document, as the API shows it.
#[derive(Serialize)]
pub(crate) struct View {
    id: i64,
    store_id: i64,
    file_name: String,
    title: Option<String>,
    external_key: Option<String>,
    media_type: String,
    size: i64,
    metadata: Value,
    /// `pending`, `delayed`, `processing`, `ready` or `failed`.
    status: String,
    /// `queued` while it waits for a worker, `waiting` while it waits for what `error` says, and what a worker is doing
    /// with it.
    stage: Option<String>,
    progress: Progress,
    error: Option<Failure>,
    chunk_count: i32,
    page_count: Option<i32>,
    content_version: i32,
    /// The version that searches find; an older one stays until the next is complete.
    live_version: Option<i32>,
    attempts: i32,
    /// Passing errors that it has waited out since it was last ready.
    retries: i32,
    /// Where it stands while it is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<Queue>,
    /// The document that an upload of bytes the store had already turned out to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate_of: Option<i64>,
    #[serde(with = "time::serde::rfc3339")]
    due_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    ready_at: Option<OffsetDateTime>,
}

#[derive(Serialize)]
struct Progress {
    done: i32,
    total: i32,
}

#[derive(Serialize)]
struct Failure {
    code: String,
    message: Option<String>,
}

#[derive(Serialize)]
struct Queue {
    position: i64,
    waiting: i64,
    oldest_age_seconds: i64,
}

impl From<Document> for View {
    fn from(document: Document) -> Self {
        let message = document.error_text;
        let stage = match document.status.as_str() {
            "pending" => Some("queued".to_owned()),
            "delayed" => Some("waiting".to_owned()),
            _ => document.stage,
        };
        Self {
            id: document.id,
            store_id: document.store_id,
            file_name: document.file_name,
            title: document.title,
            external_key: document.external_key,
            media_type: document.media_type,
            size: document.size,
            metadata: document.metadata,
            status: document.status,
            stage,
            progress: Progress { done: document.progress_done, total: document.progress_total },
            error: document.error_code.map(|code| Failure { code, message }),
            chunk_count: document.chunk_count,
            page_count: document.page_count,
            content_version: document.content_version,
            live_version: document.live_version,
            attempts: document.attempts,
            retries: document.retries,
            queue: None,
            duplicate_of: None,
            due_at: document.run_at,
            created_at: document.created_at,
            updated_at: document.updated_at,
            ready_at: document.ready_at,
        }
    }
}

impl View {
    fn at(mut self, place: Option<QueuePlace>) -> Self {
        self.queue = place.map(|place| Queue {
            position: place.position,
            waiting: place.waiting,
            oldest_age_seconds: place.oldest_age_seconds,
        });
        self
    }
}

/// One document within reach with its place in the queue, or the error that there is none.
async fn read(app: &App, reach: Reach, id: DocumentId) -> Result<View, ApiError> {
    let document = app.store.find_document(reach, id).await?.ok_or(ApiError::NotFound)?;
    let place = match document.status.as_str() {
        "pending" => app.store.find_queue_place(id).await?,
        _ => None,
    };
    Ok(View::from(document).at(place))
}
