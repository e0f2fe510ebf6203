//! What a caller has used. Any valid key may ask: it learns of its own usage only, and asking is not metered.

mod get;
mod list;

use std::time::Duration;

use serde_json::value::RawValue;
use store::StoreError;
use tokio::time::timeout;

use crate::error::EdgeError;
use crate::money::{dollars, number};

pub(crate) use get::get;
pub(crate) use list::list;

/// The database's own limits end a statement before this; a connection that has gone silent does not.
const PATIENCE: Duration = Duration::from_secs(10);

async fn asked<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, EdgeError> {
    Ok(timeout(PATIENCE, answer).await.map_err(|_| EdgeError::Unavailable(None))??)
}

/// Nano-USD as a JSON number of US dollars.
fn usd(nano: i64) -> Box<RawValue> {
    number(dollars(nano))
}
