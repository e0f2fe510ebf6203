//! `POST /prices`

use std::sync::Arc;

use axum::extract::State;
use domain::ProviderType;
use http::StatusCode;
use serde_json::json;
use store::prices::ModelPrice;

use super::Price;
use crate::app::App;
use crate::auth::Deed;
use crate::body::Json;
use crate::error::ApiError;
use crate::routes::checks;

/// 100,000 USD per million tokens.
const MOST: i64 = 100_000_000_000_000;

/// Sets the price of a model, or of all models a pattern names. It holds for calls that are admitted from now on.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    deed: Deed,
    Json(price): Json<Price>,
) -> Result<(StatusCode, axum::Json<Price>), ApiError> {
    if ProviderType::parse(&price.provider_type).is_none() {
        return Err(ApiError::invalid("provider_type: there is no such provider type"));
    }
    let prefix = price.model_pattern.strip_suffix('*').unwrap_or(&price.model_pattern);
    if !prefix.is_empty() || price.model_pattern.is_empty() {
        checks::model_name("model_pattern", prefix)?;
    }
    let cache = [("cache_read", price.cache_read), ("cache_write", price.cache_write)];
    let cache = cache.into_iter().filter_map(|(member, value)| Some((member, value?)));
    for (member, value) in [("input", price.input), ("output", price.output)].into_iter().chain(cache) {
        checks::within(member, value, 0, MOST)?;
    }
    let row = ModelPrice {
        provider_type: price.provider_type.clone(),
        model_pattern: price.model_pattern.clone(),
        input: price.input,
        output: price.output,
        cache_read: price.cache_read,
        cache_write: price.cache_write,
        builtin: false,
    };
    let entry = deed.entry(json!({ "provider_type": row.provider_type, "model_pattern": row.model_pattern }));
    app.store.set_model_price(&row, &entry).await?;
    Ok((StatusCode::CREATED, axum::Json(Price { source: "user", ..price })))
}
