//! The stages of an orderly end: one after another, each with a budget of its own.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// How long a stage has to come to its end after its deadline was reached.
const OVERRUN: Duration = Duration::from_secs(2);

/// Tells a stage that its time is up. What it does then has to be short.
#[derive(Clone, Debug, Default)]
pub struct Deadline(CancellationToken);

impl Deadline {
    /// Waits until the time is up.
    pub async fn reached(&self) {
        self.0.cancelled().await;
    }

    /// Tells that the time is up.
    pub(crate) fn reach(&self) {
        self.0.cancel();
    }
}

type Run = Box<dyn FnOnce(Deadline) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

struct Stage {
    name: &'static str,
    budget: Duration,
    run: Run,
    settles: bool,
}

/// The stages of one process, in the order in which they are pushed.
#[derive(Default)]
pub struct Stages {
    stages: Vec<Stage>,
}

impl Stages {
    /// No stages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a stage. A budget is a deadline, not a wait: a stage with nothing to do ends at once.
    pub fn push<F, R>(&mut self, name: &'static str, budget: Duration, run: R)
    where
        F: Future<Output = ()> + Send + 'static,
        R: FnOnce(Deadline) -> F + Send + 'static,
    {
        self.add(name, budget, run, false);
    }

    /// Adds the first stage that a hurried end does not skip: what it does must be done, or others pay for it later.
    /// Stages pushed after it are not skipped either.
    pub fn push_settling<F, R>(&mut self, name: &'static str, budget: Duration, run: R)
    where
        F: Future<Output = ()> + Send + 'static,
        R: FnOnce(Deadline) -> F + Send + 'static,
    {
        self.add(name, budget, run, true);
    }

    fn add<F, R>(&mut self, name: &'static str, budget: Duration, run: R, settles: bool)
    where
        F: Future<Output = ()> + Send + 'static,
        R: FnOnce(Deadline) -> F + Send + 'static,
    {
        let run: Run = Box::new(|deadline| Box::pin(run(deadline)));
        let settles = settles || self.stages.last().is_some_and(|stage| stage.settles);
        self.stages.push(Stage { name, budget, run, settles });
    }

    /// The sum of the budgets: what the process may take to end, at most.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.stages.iter().map(|stage| stage.budget).sum()
    }

    /// Runs the stages. From the moment `hurry` is cancelled, the deadlines of stages before the settling one count as
    /// reached; each still runs, so that what it owns is closed.
    pub async fn run(self, hurry: &CancellationToken) {
        let began = Instant::now();
        for stage in self.stages {
            stage.run(hurry).await;
        }
        tracing::info!(duration_ms = millis(began.elapsed()), "stopped");
    }
}

impl Stage {
    async fn run(self, hurry: &CancellationToken) {
        let began = Instant::now();
        let deadline = Deadline::default();
        let mut work = (self.run)(deadline.clone());
        let hurried = async { if self.settles { std::future::pending().await } else { hurry.cancelled().await } };
        let in_time = tokio::select! {
            biased;
            () = &mut work => true,
            () = tokio::time::sleep(self.budget) => false,
            () = hurried => false,
        };
        deadline.reach();
        let ended = in_time || timeout(OVERRUN, work).await.is_ok();
        let duration_ms = millis(began.elapsed());
        match (in_time, ended) {
            (true, _) => tracing::info!(stage = self.name, duration_ms, "shutdown stage done"),
            (false, true) => tracing::warn!(stage = self.name, duration_ms, "shutdown stage reached its deadline"),
            (false, false) => tracing::warn!(stage = self.name, duration_ms, "shutdown stage was given up"),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<&'static str>>>);

    impl Seen {
        fn note(&self, what: &'static str) {
            self.0.lock().unwrap().push(what);
        }

        fn all(&self) -> Vec<&'static str> {
            self.0.lock().unwrap().clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stages_with_nothing_to_do_take_no_time() {
        let seen = Seen::default();
        let mut stages = Stages::new();
        for name in ["leave", "drain", "settle"] {
            let seen = seen.clone();
            stages.push(name, MINUTE, move |_| async move { seen.note(name) });
        }
        assert_eq!(stages.budget(), 3 * MINUTE);
        let began = Instant::now();
        stages.run(&CancellationToken::new()).await;
        assert_eq!(seen.all(), ["leave", "drain", "settle"]);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stage_is_told_when_its_budget_is_spent() {
        let seen = Seen::default();
        let mut stages = Stages::new();
        let noting = seen.clone();
        stages.push("drain", MINUTE, move |deadline| async move {
            deadline.reached().await;
            noting.note("cut");
        });
        let began = Instant::now();
        stages.run(&CancellationToken::new()).await;
        assert_eq!(seen.all(), ["cut"]);
        assert_eq!(began.elapsed(), MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stage_that_never_ends_is_given_up_and_the_next_runs() {
        let seen = Seen::default();
        let mut stages = Stages::new();
        stages.push("stuck", MINUTE, |_| std::future::pending());
        let noting = seen.clone();
        stages.push_settling("settle", MINUTE, move |_| async move { noting.note("settled") });
        let began = Instant::now();
        stages.run(&CancellationToken::new()).await;
        assert_eq!(seen.all(), ["settled"]);
        assert_eq!(began.elapsed(), MINUTE + OVERRUN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hurried_end_goes_straight_to_settling() {
        let seen = Seen::default();
        let mut stages = Stages::new();
        let noting = seen.clone();
        stages.push("drain", MINUTE, move |deadline| async move {
            deadline.reached().await;
            noting.note("cut");
        });
        let noting = seen.clone();
        stages.push_settling("settle", MINUTE, move |deadline| async move {
            let _ = timeout(Duration::from_secs(9), deadline.reached()).await;
            noting.note("settled");
        });
        let noting = seen.clone();
        stages.push("flush", MINUTE, move |deadline| async move {
            let _ = timeout(Duration::from_secs(1), deadline.reached()).await;
            noting.note("flushed");
        });
        let hurry = CancellationToken::new();
        hurry.cancel();
        let began = Instant::now();
        stages.run(&hurry).await;
        assert_eq!(seen.all(), ["cut", "settled", "flushed"]);
        assert_eq!(began.elapsed(), Duration::from_secs(10), "settling and what follows have their own budgets");
    }
}
