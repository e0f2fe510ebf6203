//! Days of the request log, made before they come.

use std::time::Duration;

use store::Store;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_secs(10);

/// Goes on making them until it is told to stop. A failure loses no rows, so nothing waits for it.
pub(crate) async fn keep_ahead(store: Store, stop: CancellationToken) {
    let mut pause = EVERY;
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        pause = match stop.run_until_cancelled(store.ensure_log_days_ahead()).await {
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
