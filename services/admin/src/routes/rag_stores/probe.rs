//! How wide a model's vectors are: it is asked once, before a store depends on it.

use providers::{Attempts, validate_base_url};
use store::connections::ModelConnection;
use tokio::time::Instant;

use crate::app::{App, PROVIDER_PATIENCE};
use crate::error::ApiError;

/// pgvector indexes no more, whatever the type.
const MAX_WIDTH: usize = 4000;

/// What the model is asked to embed to see how wide its vectors are.
const PROBE: &str = "How many dimensions has this vector?";

pub(super) async fn probe_width(app: &App, stored: &ModelConnection) -> Result<i32, ApiError> {
    let target = stored
        .target()
        .ok_or_else(|| ApiError::invalid("embedding_connection_id: this version does not know its provider type"))?;
    if !target.provider.embeds() {
        return Err(ApiError::invalid(format!(
            "embedding_connection_id: {} has no models that embed texts; choose a connection of another provider",
            target.provider.as_str()
        )));
    }
    // The rules may have become stricter since it was stored.
    validate_base_url(&target.base_url, target.provider, &app.addresses)
        .map_err(|error| ApiError::invalid(format!("embedding_connection_id: {error}")))?;
    let credential = target.open_credential(&app.vault).map_err(|_| ApiError::CredentialUnreadable)?;
    let connection = retrieval::connection(&target, credential).map_err(ApiError::internal)?;
    let mut attempts = Attempts::until(Instant::now() + PROVIDER_PATIENCE);
    let answer = app.providers.embed(&connection, &[PROBE.to_owned()], None, &mut attempts).await?;
    let width = answer.vectors.first().map_or(0, Vec::len);
    match i32::try_from(width) {
        Ok(found @ 1..) if width <= MAX_WIDTH => Ok(found),
        _ => Err(ApiError::invalid(format!(
            "embedding_connection_id: its model answers with {width} dimensions; a store has 1 to {MAX_WIDTH}"
        ))),
    }
}
