//! Waiting by condition. No test sleeps for a fixed time.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a condition may take before the test fails: generous, since it costs nothing when all is well.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// Waits until the check yields a value.
///
/// # Errors
/// After [`DEADLINE`], naming what was waited for.
pub async fn eventually<T, F, Fut>(what: &str, mut check: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<Option<T>>>,
{
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = check().await? {
            return Ok(value);
        }
        anyhow::ensure!(Instant::now() < end, "waited {DEADLINE:?} in vain for: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the check is true.
///
/// # Errors
/// After [`DEADLINE`], naming what was waited for.
pub async fn until<F, Fut>(what: &str, mut check: F) -> anyhow::Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<bool>>,
{
    eventually(what, || {
        let check = check();
        async move { Ok(check.await?.then_some(())) }
    })
    .await
}

/// Waits for a minute of UTC that has time left, so that calls made at once fall into one window.
///
/// # Errors
/// When the clock is before 1970.
pub async fn early_in_a_minute() -> anyhow::Result<()> {
    until("a minute with time left", || async {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() % 60;
        Ok(seconds < 40)
    })
    .await
}
