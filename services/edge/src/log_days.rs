//! Days of the request log, made before they come.

use std::time::Duration;

use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

const AHEAD: i32 = 7;
const EVERY: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_secs(10);

/// Makes today's and the next seven days. Any number of processes may do this at once.
pub(crate) async fn ensure(store: &Store) -> Result<(), StoreError> {
    for day in 0..=AHEAD {
        store.ensure_log_day(day).await?;
    }
    Ok(())
}

/// Goes on making them until it is told to stop. Rows of a day that is missing go to the default partition, so a
/// failure loses nothing.
pub(crate) async fn keep_ahead(store: Store, stop: CancellationToken) {
    let mut pause = EVERY;
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        pause = match stop.run_until_cancelled(ensure(&store)).await {
            Some(Ok(())) => EVERY,
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "days of the request log cannot be made, trying again");
                PAUSE
            }
            None => return,
        };
    }
}
