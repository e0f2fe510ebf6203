//! `POST /rag-stores/{id}/calibrate`

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use domain::{DocumentId, ProjectId, SearchTuning, StoreId};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use retrieval::Search;
use retrieval::calibrate::{Calibration, FEWEST_QUESTIONS, Judged, Weights, calibrate};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::read;
use crate::app::App;
use crate::auth::{Caller, Deed};
use crate::body::Json;
use crate::error::ApiError;
use crate::path::Id;

/// Each is embedded, and searched twice.
const MOST_QUESTIONS: usize = 1_000;
const MOST_DOCUMENTS: usize = 10_000;
/// Searches that run at once.
const AT_ONCE: usize = 4;
/// For all of them.
const DEADLINE: Duration = Duration::from_secs(10 * 60);

/// Questions with the documents that answer them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    queries: Vec<Question>,
    /// Whether the store gets the weights, if they are better on questions that were held out.
    #[serde(default)]
    apply: bool,
}

/// A question and what answers it, by whichever name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    query: String,
    #[serde(default)]
    documents: Vec<DocumentId>,
    #[serde(default)]
    external_keys: Vec<String>,
    #[serde(default)]
    filenames: Vec<String>,
}

#[derive(Serialize)]
pub(crate) struct Calibrated {
    #[serde(flatten)]
    calibration: Calibration,
    /// Questions that say nothing: none of their documents is in the store, or only one leg is asked them.
    left_out: usize,
    /// Whether the store has the fitted weights now.
    applied: bool,
}

/// Fits the weights of a store's legs to questions whose answers are known.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Id(id): Id<StoreId>,
    caller: Caller,
    deed: Deed,
    Json(asked): Json<Asked>,
) -> Result<axum::Json<Calibrated>, ApiError> {
    let store = read(&app, caller.reach(), id).await?;
    if !app.store.may_write_store(caller.reach(), id).await? {
        return Err(ApiError::NotFound);
    }
    check(&asked.queries)?;
    let given = asked.queries.len();
    // Also where nothing is changed: it has spent money.
    let begun = deed.entry(json!({ "name": store.settings.name, "questions": given }));
    app.store.record_audit("store", Some(id.0), &begun).await?;
    let questions = answerable(&app, id, asked.queries).await?;
    let judged = match timeout(DEADLINE, judge(&app, store.project, id, questions)).await {
        Ok(judged) => judged?,
        Err(_) => return Err(ApiError::Busy),
    };
    let (vector, lexical) = store.settings.search.weights();
    let calibration = calibrate(&judged, Weights { vector, lexical }).ok_or_else(|| {
        ApiError::invalid(format!(
            "queries: expected at least {FEWEST_QUESTIONS} that both legs search and that a document of the store answers; \
             there are {}",
            judged.len()
        ))
    })?;
    let applied = asked.apply && calibration.improves;
    if applied {
        let Weights { vector, lexical } = calibration.fitted;
        let mut settings = store.settings.clone();
        settings.search =
            SearchTuning { vector_weight: Some(vector), lexical_weight: Some(lexical), ..settings.search };
        let entry =
            deed.entry(json!({ "vector_weight": vector, "lexical_weight": lexical, "questions": judged.len() }));
        app.store.update_document_store(caller.reach(), id, store.revision, &settings, &entry).await?;
    }
    Ok(axum::Json(Calibrated { calibration, left_out: given - judged.len(), applied }))
}

fn check(questions: &[Question]) -> Result<(), ApiError> {
    let named: usize = questions
        .iter()
        .map(|question| question.documents.len() + question.external_keys.len() + question.filenames.len())
        .sum();
    if questions.len() > MOST_QUESTIONS || named > MOST_DOCUMENTS {
        return Err(ApiError::invalid(format!(
            "queries: expected at most {MOST_QUESTIONS}, with {MOST_DOCUMENTS} documents together"
        )));
    }
    match questions.iter().position(|question| question.query.trim().is_empty()) {
        Some(place) => Err(ApiError::invalid(format!("queries[{place}].query: expected a question"))),
        None => Ok(()),
    }
}

/// The questions with those of their documents that the store has; without such ones a question says nothing.
async fn answerable(
    app: &App,
    store: StoreId,
    questions: Vec<Question>,
) -> Result<Vec<(String, HashSet<DocumentId>)>, ApiError> {
    let every = |names: fn(&Question) -> &Vec<String>| questions.iter().flat_map(names).cloned().collect::<Vec<_>>();
    let ids: Vec<DocumentId> = questions.iter().flat_map(|question| question.documents.iter().copied()).collect();
    let (keys, files) = (every(|question| &question.external_keys), every(|question| &question.filenames));
    let named = app.store.find_named_documents(store, &ids, &keys, &files).await?;
    let mut by_id = HashSet::new();
    let (mut by_key, mut by_file) = (HashMap::new(), HashMap::<String, Vec<DocumentId>>::new());
    for document in named {
        by_id.insert(document.id);
        by_file.entry(document.file_name).or_default().push(document.id);
        if let Some(key) = document.external_key {
            by_key.insert(key, document.id);
        }
    }
    let resolved = questions.into_iter().map(|question| {
        let mut documents: HashSet<DocumentId> =
            question.documents.into_iter().filter(|document| by_id.contains(document)).collect();
        documents.extend(question.external_keys.iter().filter_map(|key| by_key.get(key)));
        documents.extend(question.filenames.iter().filter_map(|name| by_file.get(name)).flatten());
        (question.query.chars().take(super::LONGEST_QUERY_CHARS).collect(), documents)
    });
    Ok(resolved.filter(|(_, documents)| !documents.is_empty()).collect())
}

async fn judge(
    app: &App,
    project: ProjectId,
    store: StoreId,
    questions: Vec<(String, HashSet<DocumentId>)>,
) -> Result<Vec<Judged>, ApiError> {
    let each = questions.into_iter().map(|(query, documents)| async move {
        let search = Search { project, store, query: &query, top_k: 1, filter: None, rerank: None };
        app.retrieval.judge(&search, documents, &mut |_| ()).await
    });
    // In the order that they were given in: they are dealt into folds by their places.
    let judged: Vec<Option<Judged>> = stream::iter(each).buffered(AT_ONCE).try_collect().await?;
    Ok(judged.into_iter().flatten().collect())
}
