//! What a caller has used. Any valid key may ask: it learns of its own usage only, and asking is not metered.

mod get;
mod list;

use serde_json::value::RawValue;
use store::{Store, StoreError};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::EdgeError;
use crate::money::{dollars, number};
use crate::state::Edge;

pub(crate) use get::get;
pub(crate) use list::list;

/// Turns to read. A call is looked for in the whole log before it is said not to exist, and there must be connections
/// left meanwhile to find out who calls.
pub(crate) struct Reads(Semaphore);

impl Reads {
    pub(crate) fn of(store: &Store) -> Self {
        Self(Semaphore::new((store.pool_size() as usize / 2).max(1)))
    }
}

/// Reads when it is its turn: for either the time that a connection is waited for.
async fn asked<T>(edge: &Edge, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, EdgeError> {
    let turn = timeout(edge.store.acquire_timeout(), edge.usage_reads.0.acquire()).await;
    let _turn = turn.map_err(|_| EdgeError::Busy)?.map_err(EdgeError::internal)?;
    Ok(edge.store.in_time(answer).await?)
}

/// Nano-USD as a JSON number of US dollars.
fn usd(nano: i64) -> Box<RawValue> {
    number(dollars(nano))
}
