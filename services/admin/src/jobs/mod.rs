//! Keeping house. Every replica does it; each step may run twice at once and be cut off anywhere.

use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// Between two passes.
const EVERY: Duration = Duration::from_secs(3600);

/// After a pass that failed.
const AGAIN: Duration = Duration::from_secs(60);

/// Blobs removed by one statement: each may have hundreds of parts.
const SWEEP_BATCH: u64 = 100;

/// Between two statements that remove a lot.
const BREATH: Duration = Duration::from_millis(100);

/// Passes, from now on until it is told to stop.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    loop {
        let pause = match stop.run_until_cancelled(pass(&app)).await {
            None => return,
            Some(Ok(())) => EVERY,
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "housekeeping failed and is tried again in a minute");
                AGAIN
            }
        };
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

async fn pass(app: &App) -> Result<(), StoreError> {
    app.store.ensure_log_days_ahead().await?;
    let sessions = app.store.delete_expired_sessions().await?;
    let attempts = app.store.delete_old_login_attempts().await?;
    let mut blobs = 0;
    loop {
        let swept = app.store.sweep_blobs(i64::try_from(SWEEP_BATCH).unwrap_or(i64::MAX)).await?;
        blobs += swept;
        if swept < SWEEP_BATCH {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    tracing::info!(sessions, attempts, blobs, "housekeeping is done");
    Ok(())
}
