//! How far a job is, shown at most every two seconds.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use store::Store;
use store::queue::ClaimKey;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What is over before that is not worth a write.
const FIRST: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_secs(2);

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    stage: &'static str,
    done: i32,
    total: i32,
}

/// Told by the job where it is. That never waits for the database.
pub(crate) struct Progress(watch::Sender<Step>);

/// Shows what the job told.
pub(crate) struct Display {
    told: watch::Receiver<Step>,
    not_before: Instant,
}

/// Both ends, for one claim.
pub(crate) fn progress() -> (Progress, Display) {
    let (sender, receiver) = watch::channel(Step { stage: "claimed", done: 0, total: 0 });
    (Progress(sender), Display { told: receiver, not_before: Instant::now() + FIRST })
}

impl Progress {
    /// Says where the job is.
    pub(crate) fn at(&self, stage: &'static str, done: usize, total: usize) {
        let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        self.0.send_replace(Step { stage, done: count(done), total: count(total) });
    }
}

impl Display {
    /// Writes it until it is dropped. A failure to show it is no failure of the job.
    pub(crate) async fn run(mut self, store: &Store, key: ClaimKey) -> Infallible {
        loop {
            let step = self.next().await;
            if let Err(error) = store.set_progress(key, step.stage, step.done, step.total).await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    document = key.document.0,
                    "progress could not be shown"
                );
            }
        }
    }

    /// The next step that is to be shown, when its time has come.
    async fn next(&mut self) -> Step {
        sleep_until(self.not_before).await;
        if self.told.changed().await.is_err() {
            // Nobody tells any more: the job is over.
            pending::<()>().await;
        }
        self.not_before = Instant::now() + PAUSE;
        *self.told.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_word_is_shown_and_no_two_within_two_seconds() {
        let (progress, mut display) = progress();
        let mut shown = Vec::new();
        let telling = async {
            for done in 0..=50 {
                progress.at("embedding", done, 50);
                sleep(Duration::from_millis(100)).await;
            }
            sleep(PAUSE).await;
        };
        let showing = async {
            loop {
                let step = display.next().await;
                shown.push((Instant::now(), step.done));
            }
        };
        tokio::select! {
            () = telling => {}
            _ = timeout(Duration::from_secs(60), showing) => panic!("it is told for a few seconds only"),
        }
        assert_eq!(shown.last().map(|(_, done)| *done), Some(50));
        assert!(shown.windows(2).all(|pair| pair[1].0 - pair[0].0 >= PAUSE), "{shown:?}");
        assert!(shown.len() >= 3, "{shown:?}");
    }
}
