//! The vector leg: the query is embedded by the store's model and compared with the store's vectors.

use std::time::Duration;

use providers::{Attempts, Connection, Providers};
use store::search::{SearchSettings, VectorHit};
use store::targets::UpstreamTarget;
use tokio::time::Instant;
use url::Url;

use crate::search::{EmbeddingUse, OpenCredential, Retrieval};

const EMBEDDING_DEADLINE: Duration = Duration::from_secs(3);
const SCAN_DEADLINE: Duration = Duration::from_secs(2);

/// What the leg found, and what the provider is owed for it.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) hits: Vec<VectorHit>,
    pub(crate) used: Option<EmbeddingUse>,
}

/// Chunks nearest to the query, nearest first. `Err` says why there is no answer.
pub(crate) async fn find(
    retrieval: &Retrieval,
    settings: &SearchSettings,
    query: &str,
    limit: usize,
) -> Result<Found, String> {
    let (vector, used) = embed(&retrieval.providers, &retrieval.open_credential, &settings.embedding, query).await?;
    if vector.len() != usize::try_from(settings.width).unwrap_or(0) {
        return Err(format!("the model answered with {} dimensions, not {}", vector.len(), settings.width));
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let hits = retrieval
        .store
        .nearest_chunks(settings, &vector, limit, SCAN_DEADLINE)
        .await
        .map_err(|error| error.to_string())?;
    Ok(Found { hits, used: Some(used) })
}

async fn embed(
    providers: &Providers,
    open_credential: &OpenCredential,
    target: &UpstreamTarget,
    query: &str,
) -> Result<(Vec<f32>, EmbeddingUse), String> {
    let connection = Connection {
        id: target.connection,
        provider: target.provider,
        base_url: Url::parse(&target.base_url).map_err(|_| "the base URL cannot be read".to_owned())?,
        credential: open_credential(target).map_err(|error| error.to_string())?,
        model: target.model.clone(),
    };
    let mut attempts = Attempts::until(Instant::now() + EMBEDDING_DEADLINE);
    let answer = providers
        .embed(&connection, &[query.to_owned()], None, &mut attempts)
        .await
        .map_err(|error| format!("the query could not be embedded: {}", error.message()))?;
    let counted = tokens::count(tokens::Family::of(&target.model), query);
    let tokens = answer.usage.map_or_else(|| i64::try_from(counted).unwrap_or(i64::MAX), |usage| usage.prompt_tokens);
    let vector = answer.vectors.into_iter().next().ok_or_else(|| "the model answered without a vector".to_owned())?;
    let used =
        EmbeddingUse { connection: target.connection, provider: target.provider, model: target.model.clone(), tokens };
    Ok((vector, used))
}
