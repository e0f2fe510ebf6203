//! `POST /rag-stores/{id}/documents`
//!
//! What can be refused without the bytes is refused before any of them is kept: by role, by type, by declared length, by
//! backlog. A file's own type is decided on its first bytes. The rest streams into the database; one transaction at the
//! end of each file decides what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use config::Size;
use domain::{DocumentId, StoreId};
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::uploads::{Upload, UploadOutcome};
use tokio::time::timeout;

use super::form::{FORM_BYTES, File, Notes, Source, is_file};
use super::receive::{receive, too_large};
use super::{View, read};
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::{Params, is_type, refuse_encoded};
use crate::error::ApiError;
use crate::path::Id;

/// A client that sends slower than this does not get its file in. Well below the hour after which bytes without a name
/// are swept, so that no upload is swept while it is going on.
const DEADLINE: Duration = Duration::from_secs(30 * 60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// Whether bytes that the store has already make another document.
    #[serde(default)]
    allow_duplicate: bool,
    /// The uploader's own key for the (first) file: a document that has it is replaced.
    external_key: Option<String>,
}

/// One document for one file, else a list.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    One(Box<View>),
    Many(Vec<View>),
}

/// Who uploads what to where.
struct Batch<'a> {
    app: &'a Arc<App>,
    caller: &'a Caller,
    deed: &'a Deed,
    store: StoreId,
    allow_duplicate: bool,
}

/// Takes one or several files. Each is a document of its own; one that is refused ends the request, and those before it
/// stay.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(store): Id<StoreId>,
    caller: Caller,
    deed: Deed,
    Params(options): Params<Options>,
    request: Request,
) -> Result<(StatusCode, Json<Answer>), ApiError> {
    let (parts, body) = request.into_parts();
    let (source, headers) = (Source::new(body), parts.headers.clone());
    let batch = Batch { app: &app, caller: &caller, deed: &deed, store, allow_duplicate: options.allow_duplicate };
    let taken = match timeout(DEADLINE, batch.take(parts, &source, options.external_key)).await {
        Ok(taken) => taken,
        Err(_) => Err(ApiError::BodySlow),
    };
    match taken {
        Ok(mut documents) => {
            let one = if documents.len() == 1 { documents.pop() } else { None };
            let answer = one.map_or_else(|| Answer::Many(documents), |one| Answer::One(Box::new(one)));
            Ok((StatusCode::ACCEPTED, Json(answer)))
        }
        Err(error) => {
            source.discard(&headers).await;
            Err(error)
        }
    }
}

impl Batch<'_> {
    async fn take(&self, parts: Parts, source: &Source, external_key: Option<String>) -> Result<Vec<View>, ApiError> {
        self.check_before_the_first_byte(&parts.headers).await?;
        let mut notes = Notes::new(source.clone(), external_key)?;
        let mut form = source.form(parts).await?;
        let mut documents = Vec::new();
        let mut room = self.app.max_upload.as_bytes();
        while let Some(field) = form.next_field().await.map_err(|error| source.failure(&error))? {
            if is_file(&field) {
                self.app.backlog.check().await?;
                documents.push(self.take_file(notes.file(field)?, &mut room).await?);
            } else {
                notes.take(field).await?;
            }
        }
        if documents.is_empty() {
            return Err(ApiError::invalid("the form has no file; send one or several as file"));
        }
        Ok(documents)
    }

    async fn check_before_the_first_byte(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        refuse_encoded(headers)?;
        if !is_type(headers, "multipart/form-data") {
            return Err(ApiError::MediaType("multipart/form-data with a boundary"));
        }
        check_length(headers, self.app.max_upload)?;
        if !self.app.store.may_write_store(self.caller.reach(), self.store).await? {
            return Err(ApiError::NotFound);
        }
        self.app.backlog.check().await
    }

    /// Takes a file of at most that many bytes; those of the request share them.
    async fn take_file(&self, mut file: File<'_>, room: &mut u64) -> Result<View, ApiError> {
        let received = receive(self.app, &mut file, *room).await?;
        *room = room.saturating_sub(received.size.unsigned_abs());
        let upload = Upload {
            store: self.store,
            blob: received.bytes.blob,
            sha256: received.sha256,
            size: received.size,
            file_name: file.name,
            media_type: received.media_type.to_owned(),
            external_key: file.external_key,
            metadata: file.metadata,
            allow_duplicate: self.allow_duplicate,
        };
        let entry = self.deed.entry(json!({ "store_id": self.store, "bytes": upload.size }));
        let outcome = match self.app.store.finish_upload(self.caller.reach(), &upload, &entry).await {
            Ok(outcome) => outcome,
            Err(error) => {
                received.bytes.remove().await;
                return Err(error.into());
            }
        };
        received.bytes.decided();
        match outcome {
            UploadOutcome::Created(document) | UploadOutcome::Replaced(document) => self.view(document).await,
            UploadOutcome::Duplicate(document) => {
                let mut view = self.view(document).await?;
                view.duplicate_of = Some(document.0);
                Ok(view)
            }
            UploadOutcome::TooManyDocuments { limit } => {
                Err(ApiError::Quota(format!("the store may hold {limit} documents and has no room for another")))
            }
            UploadOutcome::TooManyBytes { limit } => {
                Err(ApiError::Quota(format!("the store may hold {limit} bytes and has no room for this file")))
            }
        }
    }

    async fn view(&self, document: DocumentId) -> Result<View, ApiError> {
        read(self.app, self.caller.reach(), document).await
    }
}

/// Refuses a request that says it is too long. One that does not say is cut when it is.
fn check_length(headers: &HeaderMap, limit: Size) -> Result<(), ApiError> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > limit.as_bytes() + FORM_BYTES as u64) {
        Err(too_large(limit))
    } else {
        Ok(())
    }
}
