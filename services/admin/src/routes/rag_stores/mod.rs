//! Document stores.

pub(crate) mod calibrate;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
mod probe;
pub(crate) mod reprocess;
pub(crate) mod search;
mod switch;
mod tuning;
pub(crate) mod update;

use domain::{ConnectionId, ProjectId, SearchTuning, StoreId};
use serde::{Deserialize, Serialize};
use store::Reach;
use store::document_stores::{DocumentStore, StoreSettings};
use time::OffsetDateTime;

use super::checks;
use crate::app::App;
use crate::body::nullable;
use crate::error::ApiError;

/// The part of a question that is searched for, as edges do.
const LONGEST_QUERY_CHARS: usize = 4_000;

/// A store, as the API shows it.
#[derive(Serialize)]
pub(crate) struct View {
    id: StoreId,
    project_id: ProjectId,
    name: String,
    embedding_connection_id: ConnectionId,
    dimensions: i32,
    chunk_tokens: i32,
    chunk_overlap: i32,
    contextual: bool,
    language: Option<String>,
    max_running: i32,
    max_documents: i64,
    max_bytes: i64,
    max_age_days: i32,
    /// How it is searched.
    retrieval: SearchTuning,
    document_count: i64,
    chunk_count: i64,
    bytes_used: i64,
    revision: i64,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<DocumentStore> for View {
    fn from(store: DocumentStore) -> Self {
        let settings = store.settings;
        Self {
            id: store.id,
            project_id: store.project,
            name: settings.name,
            embedding_connection_id: store.connection,
            dimensions: store.width,
            chunk_tokens: settings.chunk_tokens,
            chunk_overlap: settings.chunk_overlap,
            contextual: settings.contextual,
            language: settings.language,
            max_running: settings.max_running,
            max_documents: settings.max_documents,
            max_bytes: settings.max_bytes,
            max_age_days: settings.max_age_days,
            retrieval: settings.search,
            document_count: store.document_count,
            chunk_count: store.chunk_count,
            bytes_used: store.bytes_used,
            revision: store.revision,
            created_at: store.created_at,
            updated_at: store.updated_at,
        }
    }
}

/// The members that people may set, in a new store and in a change alike.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Changes {
    /// Chosen once, when the store is made.
    project_id: Option<ProjectId>,
    /// Another one later is switched to when all its vectors are there.
    embedding_connection_id: Option<ConnectionId>,
    name: Option<String>,
    chunk_tokens: Option<i32>,
    chunk_overlap: Option<i32>,
    contextual: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    language: Option<Option<String>>,
    max_running: Option<i32>,
    max_documents: Option<i64>,
    max_bytes: Option<i64>,
    max_age_days: Option<i32>,
    retrieval: Option<tuning::TuningChanges>,
}

impl Changes {
    /// The settings after the changes, checked.
    fn apply(self, now: StoreSettings) -> Result<StoreSettings, ApiError> {
        let chunk_tokens = checks::within("chunk_tokens", self.chunk_tokens.unwrap_or(now.chunk_tokens), 32, 8000)?;
        let chunk_overlap = self.chunk_overlap.unwrap_or(now.chunk_overlap);
        Ok(StoreSettings {
            name: checks::name(self.name.as_deref().unwrap_or(&now.name))?,
            chunk_tokens,
            chunk_overlap: checks::within("chunk_overlap", chunk_overlap, 0, chunk_tokens - 1)?,
            contextual: self.contextual.unwrap_or(now.contextual),
            language: language(self.language.unwrap_or(now.language))?,
            max_running: checks::within("max_running", self.max_running.unwrap_or(now.max_running), 0, 1000)?,
            max_documents: checks::within(
                "max_documents",
                self.max_documents.unwrap_or(now.max_documents),
                0,
                i64::MAX,
            )?,
            max_bytes: checks::within("max_bytes", self.max_bytes.unwrap_or(now.max_bytes), 0, i64::MAX)?,
            max_age_days: checks::within("max_age_days", self.max_age_days.unwrap_or(now.max_age_days), 0, 36_500)?,
            search: self.retrieval.unwrap_or_default().apply(now.search)?,
        })
    }
}

fn language(code: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(code) = code else { return Ok(None) };
    if code.len() != 2 || !code.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Err(ApiError::invalid("language: expected an ISO 639-1 code such as en, or null to detect it"));
    }
    Ok(Some(code))
}

/// One store within reach, or the error that there is none.
async fn read(app: &App, reach: Reach, id: StoreId) -> Result<DocumentStore, ApiError> {
    app.store.list_document_stores(reach, Some(id)).await?.pop().ok_or(ApiError::NotFound)
}
