//! Adding up the log by day. Every replica does it; whoever finds another at it leaves it to that one.
//!
//! A day is computed anew as a whole whenever calls were settled into it, so today is computed again and again. What keeps
//! that cheap is the pace: the longer a pass takes, the later the next one comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// Between two passes, if the last one was quick.
const EVERY: Duration = Duration::from_secs(60);

/// A pass is followed by a pause of at least this many times its length: at most a twentieth of the time is spent on it.
const REST: u32 = 20;

/// The longest pause.
const SELDOM: Duration = Duration::from_secs(3600);

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// So many days are rolled up, and everything settled before the pass is in them.
    Done(usize),
    /// Another process is at it.
    LeftToAnother,
}

/// Passes, from now on until it is told to stop.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    loop {
        let began = Instant::now();
        match stop.run_until_cancelled(pass(&app.store)).await {
            None => return,
            Some(Ok(Pass::Done(days))) => tracing::debug!(days, "usage is rolled up"),
            Some(Ok(Pass::LeftToAnother)) => tracing::debug!("usage is being rolled up by another process"),
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "usage cannot be rolled up now and is tried again");
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(pause(began.elapsed()))).await.is_none() {
            return;
        }
    }
}

fn pause(took: Duration) -> Duration {
    took.saturating_mul(REST).clamp(EVERY, SELDOM)
}

/// A pass that does not come to its end says nothing of its days: the next one finds them again.
async fn pass(store: &Store) -> Result<Pass, StoreError> {
    let due = store.list_due_usage_days().await?;
    for day in &due.days {
        if !store.roll_up_usage_day(*day).await? {
            return Ok(Pass::LeftToAnother);
        }
    }
    store.finish_usage_rollup(due.settled_until).await?;
    Ok(Pass::Done(due.days.len()))
}

#[cfg(test)]
mod tests {
    use domain::{ProjectId, RequestId};
    use serde_json::json;
    use testkit::{LogRow, RoleName};

    use super::*;

    #[test]
    fn a_long_pass_is_followed_by_a_long_rest() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(Duration::ZERO), seconds(60));
        assert_eq!(pause(seconds(10)), seconds(200));
        assert_eq!(pause(seconds(900)), seconds(3600));
        assert_eq!(pause(Duration::MAX), seconds(3600));
    }

    #[tokio::test]
    async fn replicas_roll_up_the_same_days_and_count_nothing_twice() {
        let database = testkit::database().await.unwrap();
        let stores = [(); 3].map(|()| database.store(RoleName::Backend).unwrap());
        for day in [-1, 0] {
            stores[0].ensure_log_day(day).await.unwrap();
        }
        for days_ago in [1, 0, 0] {
            let row = LogRow {
                request: RequestId::new(),
                days_ago,
                project: (ProjectId(1), "p"),
                key: None,
                model: None,
                status: 200,
                estimated: false,
                tokens: 5,
                cost: 7,
                tags: json!({ "team": "a" }),
            };
            database.insert_log_row(&row).await.unwrap();
        }
        let passes = futures::future::try_join_all(stores.iter().map(pass)).await.unwrap();
        // If they were in each other's way, the next pass has it all.
        assert!(passes.iter().all(|done| matches!(done, Pass::Done(2) | Pass::LeftToAnother)), "{passes:?}");
        assert_eq!(pass(&stores[1]).await.unwrap(), Pass::Done(2));
        let rows = database.usage_rollups().await.unwrap();
        let told: Vec<_> =
            rows.iter().map(|row| (row.days_ago, row.tag_key.as_str(), row.requests, row.charged_cost)).collect();
        assert_eq!(told, [(1, "", 1, 7), (1, "team", 1, 7), (0, "", 2, 14), (0, "team", 2, 14)]);
    }
}
