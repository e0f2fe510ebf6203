//! The vector leg: the query is embedded by the store's model and compared with the store's vectors.

use std::sync::Arc;
use std::time::Duration;

use providers::{Attempts, Providers};
use store::StoreError;
use store::filters::Within;
use store::search::SearchSettings;
use store::targets::UpstreamTarget;
use store::vectors::nearest::{Nearest, Neighbours};
use tokio::time::Instant;

use crate::connection::connection;
use crate::error::PartError;
use crate::owed::{Debt, ModelUse, Owed, Work};
use crate::query_cache::QueryKey;
use crate::search::{OpenCredential, Retrieval, Search};

const EMBEDDING_DEADLINE: Duration = Duration::from_secs(3);
const SCAN_DEADLINE: Duration = Duration::from_secs(2);

/// Chunks nearest to the query, nearest first, and how they were found. What the provider is owed is told to `owed` as
/// soon as it has answered, or the wait for it is given up.
pub(crate) async fn find(
    retrieval: &Retrieval,
    settings: &SearchSettings,
    search: &Search<'_>,
    within: Option<&Within>,
    limit: usize,
    owed: Owed<'_>,
) -> Result<Neighbours, PartError> {
    match find_by(retrieval, settings, search, within, limit, &mut *owed).await {
        // The store got another model in the meantime.
        Err(PartError::Store(StoreError::Conflict)) => {
            let settings = retrieval.store.find_search_settings(settings.store).await?.ok_or(StoreError::NotFound)?;
            find_by(retrieval, &settings, search, within, limit, owed).await
        }
        found => found,
    }
}

async fn find_by(
    retrieval: &Retrieval,
    settings: &SearchSettings,
    search: &Search<'_>,
    within: Option<&Within>,
    limit: usize,
    owed: Owed<'_>,
) -> Result<Neighbours, PartError> {
    let key = QueryKey::new(search.project, settings.revision, search.query);
    let vector = match retrieval.queries.get(&key) {
        Some(vector) => vector,
        None => {
            let Retrieval { providers, open_credential, .. } = retrieval;
            let vector = embed(providers, open_credential, &settings.embedding, search.query, owed).await?;
            if vector.len() != usize::try_from(settings.width).unwrap_or(0) {
                return Err(PartError::Width { answered: vector.len(), of_store: settings.width });
            }
            let vector: Arc<[f32]> = Arc::from(vector);
            retrieval.queries.put(key, Arc::clone(&vector));
            vector
        }
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let nearest = Nearest { settings, vector: &vector, limit, within, deadline: SCAN_DEADLINE, exact_rows: None };
    Ok(retrieval.store.nearest_chunks(&nearest).await?)
}

async fn embed(
    providers: &Providers,
    open_credential: &OpenCredential,
    target: &UpstreamTarget,
    query: &str,
    owed: Owed<'_>,
) -> Result<Vec<f32>, PartError> {
    let connection = connection(target, open_credential(target)?)?;
    let mut attempts = Attempts::until(Instant::now() + EMBEDDING_DEADLINE);
    let counted = tokens::count(tokens::Family::of(&target.model), query);
    let used = ModelUse::counted(Work::Embedding, target, i64::try_from(counted).unwrap_or(i64::MAX), 0);
    let debt = Debt::new(used, owed);
    let answer = match providers.embed(&connection, &[query.to_owned()], None, &mut attempts).await {
        Ok(answer) => answer,
        Err(error) => {
            debt.ends_with(&error);
            return Err(error.into());
        }
    };
    debt.stands(|used| {
        if let Some(usage) = answer.usage {
            used.tokens = usage.prompt_tokens;
            used.estimated = false;
        }
    });
    answer.vectors.into_iter().next().ok_or(PartError::NoVector)
}
