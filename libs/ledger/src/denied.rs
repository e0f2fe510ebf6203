//! Denials that are not said yet: calls that have ended may still hold what is missing. What those of this process hold is
//! given back first, and those of others get a moment for it, so that nobody is denied for a call whose end its client has
//! seen.

use std::collections::VecDeque;
use std::time::Duration;

use store::ledger::Denial;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::lane::Waiting;
use crate::writer::{Payer, Wanted};

/// How long a denial waits for the settlements that were under way.
const SETTLED_WITHIN: Duration = Duration::from_secs(1);

/// How long other processes get to settle what has ended there.
const MOMENT: Duration = Duration::from_millis(20);

/// A denial, and whom it is for.
pub(crate) struct Denied {
    pub(crate) waiting: Waiting,
    pub(crate) denial: Denial,
    /// Before it was asked for.
    pub(crate) since: Instant,
}

impl Denied {
    fn payer(&self) -> Payer {
        Payer { project: self.waiting.ask.project, key: self.waiting.ask.key }
    }
}

/// The denials of a lane that are not said yet. The lane goes on with others meanwhile.
pub(crate) struct Unsaid {
    wanted: mpsc::Sender<Wanted>,
    next: Vec<Denied>,
    asked: Option<Asked>,
}

struct Asked {
    denied: Vec<Denied>,
    settled: oneshot::Receiver<Vec<bool>>,
    until: Instant,
}

impl Unsaid {
    pub(crate) fn new(wanted: mpsc::Sender<Wanted>) -> Self {
        Self { wanted, next: Vec::new(), asked: None }
    }

    pub(crate) fn push(&mut self, denied: Denied) {
        self.next.push(denied);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.asked.is_none()
    }

    /// Waits until it is known of some denials whether anything was given back to their tiers since; for ever where there
    /// are none. Nothing is lost when this is dropped half-way.
    pub(crate) async fn known(&mut self) -> Vec<(Denied, bool)> {
        if self.asked.is_none() && !self.next.is_empty() {
            let denied = std::mem::take(&mut self.next);
            let (answer, settled) = oneshot::channel();
            let of = denied.iter().map(|denied| (denied.payer(), denied.since)).collect();
            // A writer that is too busy to be asked does not answer in time either.
            let _ = self.wanted.try_send(Wanted { of, settled: answer });
            self.asked = Some(Asked { denied, settled, until: Instant::now() + SETTLED_WITHIN });
        }
        let Some(asked) = &mut self.asked else { return std::future::pending().await };
        let settled = timeout_at(asked.until, &mut asked.settled).await.ok().and_then(Result::ok).unwrap_or_default();
        let denied = self.asked.take().map(|asked| asked.denied).unwrap_or_default();
        let settled = settled.into_iter().chain(std::iter::repeat(false));
        denied.into_iter().zip(settled).collect()
    }
}

/// Denials of a lane that are asked for a last time, each a moment after the try before.
#[derive(Default)]
pub(crate) struct LastTries {
    denied: VecDeque<(Instant, Denied)>,
}

impl LastTries {
    pub(crate) fn push(&mut self, denied: Denied) {
        self.denied.push_back((Instant::now() + MOMENT, denied));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.denied.is_empty()
    }

    /// Waits until some are due; for ever where there are none.
    pub(crate) async fn due(&self) {
        match self.denied.front() {
            Some((due_at, _)) => sleep_until(*due_at).await,
            None => std::future::pending().await,
        }
    }

    /// Takes those that are due.
    pub(crate) fn take(&mut self) -> Vec<Denied> {
        let now = Instant::now();
        let due = self.denied.iter().take_while(|(due_at, _)| *due_at <= now).count();
        self.denied.drain(..due).map(|(_, denied)| denied).collect()
    }
}
