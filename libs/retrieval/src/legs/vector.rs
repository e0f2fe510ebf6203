//! The vector leg: the query is embedded by the store's model and compared with the store's vectors.

use std::time::Duration;

use providers::{Attempts, Providers};
use store::search::{SearchSettings, VectorHit};
use store::targets::UpstreamTarget;
use tokio::time::Instant;

use crate::connection::connection;
use crate::error::PartError;
use crate::owed::{Debt, ModelUse, Owed, Work};
use crate::search::{OpenCredential, Retrieval};

const EMBEDDING_DEADLINE: Duration = Duration::from_secs(3);
const SCAN_DEADLINE: Duration = Duration::from_secs(2);

/// Chunks nearest to the query, nearest first. What the provider is owed is told to `owed` as soon as it has answered, or
/// the wait for it is given up.
pub(crate) async fn find(
    retrieval: &Retrieval,
    settings: &SearchSettings,
    query: &str,
    limit: usize,
    owed: Owed<'_>,
) -> Result<Vec<VectorHit>, PartError> {
    let vector = embed(&retrieval.providers, &retrieval.open_credential, &settings.embedding, query, owed).await?;
    if vector.len() != usize::try_from(settings.width).unwrap_or(0) {
        return Err(PartError::Width { answered: vector.len(), of_store: settings.width });
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    Ok(retrieval.store.nearest_chunks(settings, &vector, limit, SCAN_DEADLINE).await?)
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
