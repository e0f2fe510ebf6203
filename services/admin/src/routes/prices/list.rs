//! `GET /prices`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::Price;
use crate::app::App;
use crate::error::ApiError;

#[derive(Serialize)]
pub(crate) struct Prices {
    unit: &'static str,
    prices: Vec<Price>,
}

/// All prices.
pub(crate) async fn handle(State(app): State<Arc<App>>) -> Result<Json<Prices>, ApiError> {
    let prices = app.store.list_model_prices().await?.into_iter().map(|price| Price {
        provider_type: price.provider_type,
        model_pattern: price.model_pattern,
        input: price.input,
        output: price.output,
        cache_read: price.cache_read,
        cache_write: price.cache_write,
        source: if price.builtin { "builtin" } else { "user" },
    });
    Ok(Json(Prices { unit: "nano_usd_per_million_tokens", prices: prices.collect() }))
}
