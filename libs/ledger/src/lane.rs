//! Lanes of admission: while a statement is in flight, later arrivals gather for the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store::instances::Standing;
use store::ledger::{Admission, Ask, Denial, LedgerEpoch, LedgerLink, OpenCallRow};
use store::{Store, StoreError};
use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::call::{Ending, Handed, OpenCall, Overruling, Verdict};
use crate::error::LedgerError;
use crate::live::LiveCalls;
use crate::service::Outcome;
use crate::writer::Wanted;

const BATCH: usize = 64;

/// How often a lane begins anew within one batch because the ledger's epoch or its own instance has changed.
const NEW_STARTS: usize = 4;

/// Between two tries of admissions that nobody waits for.
const PAUSE: Duration = Duration::from_millis(200);

/// How long an admission that nobody waits for waits for others to go with it.
const GATHER: Duration = Duration::from_millis(4);

/// How long a denial waits for the settlements that were under way.
const SETTLED_WITHIN: Duration = Duration::from_secs(1);

/// An ask on its way to the database.
pub(crate) struct Waiting {
    pub(crate) ask: Arc<Ask>,
    pub(crate) reply: Reply,
}

/// Who hears of the outcome.
pub(crate) enum Reply {
    /// A caller that waits, with the permit its settlement will need.
    Now { permit: OwnedPermit<Handed>, to: oneshot::Sender<Result<Outcome, LedgerError>> },
    /// A call that runs already. It is tried until the database has decided; `again` says that an earlier try may have
    /// been committed without its answer having arrived.
    Later { verdict: watch::Sender<Verdict>, again: bool },
}

impl Waiting {
    fn is_wanted(&self) -> bool {
        match &self.reply {
            Reply::Now { to, .. } => !to.is_closed(),
            // It runs, whoever still listens.
            Reply::Later { .. } => true,
        }
    }

    fn is_again(&self) -> bool {
        matches!(self.reply, Reply::Later { again: true, .. })
    }
}

/// One lane.
pub(crate) struct Lane {
    pub(crate) number: usize,
    pub(crate) link: LedgerLink,
    pub(crate) standing: Standing,
    pub(crate) live: LiveCalls,
    /// Whether the last batch got through: what need not wait for the database may only begin while it is there.
    pub(crate) reachable: Arc<AtomicBool>,
    /// Told when admissions may have been made that nobody knows of.
    pub(crate) doubts: Arc<Notify>,
    /// Where to ask for what has ended to be settled.
    wanted: mpsc::Sender<Wanted>,
    epoch: Option<LedgerEpoch>,
    unsent: Vec<Waiting>,
    /// When the unsent are sent at the latest.
    due: Option<Instant>,
}

impl Lane {
    pub(crate) fn new(
        number: usize,
        store: &Store,
        standing: Standing,
        live: LiveCalls,
        reachable: Arc<AtomicBool>,
        doubts: Arc<Notify>,
        wanted: mpsc::Sender<Wanted>,
    ) -> Self {
        let link = store.ledger_link();
        Self { number, link, standing, live, reachable, doubts, wanted, epoch: None, unsent: Vec::new(), due: None }
    }

    /// Admits what comes in, batch by batch, until the ledger is dropped.
    ///
    /// The statement runs in this task and not in the caller's future: a caller that is dropped while it waits leaves an
    /// answer that nobody takes, and the call in it is settled.
    pub(crate) async fn run(mut self, mut inbox: mpsc::Receiver<Waiting>) {
        let mut open = true;
        while open || !self.unsent.is_empty() {
            let due = self.due.unwrap_or_else(Instant::now);
            tokio::select! {
                received = inbox.recv_many(&mut self.unsent, BATCH), if open => open = received > 0,
                () = sleep_until(due), if self.due.is_some() => {}
            }
            // Who waits takes those along that nobody waits for.
            let hurries = |waiting: &Waiting| matches!(waiting.reply, Reply::Now { .. });
            let gathered = self.unsent.len() >= BATCH || self.due.is_some_and(|due| due <= Instant::now());
            if open && !gathered && !self.unsent.iter().any(hurries) {
                self.due.get_or_insert_with(|| Instant::now() + GATHER);
                continue;
            }
            self.due = None;
            let mut batch = std::mem::take(&mut self.unsent);
            batch.retain(Waiting::is_wanted);
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(BATCH));
                self.admit(batch).await;
                batch = rest;
            }
        }
        self.link.close().await;
    }

    /// Admits a batch; one that fails by its values is halved until the one at fault is alone.
    async fn admit(&mut self, batch: Vec<Waiting>) {
        let mut batches = vec![batch];
        while let Some(mut batch) = batches.pop() {
            let since = Instant::now();
            match self.ask(&batch).await {
                Ok(admissions) => {
                    self.reachable.store(true, Ordering::Relaxed);
                    let mut denied = Vec::new();
                    for (waiting, admission) in batch.into_iter().zip(admissions) {
                        match admission {
                            Admission::Denied(denial) if denial.held > 0 => denied.push((waiting, denial)),
                            admission => self.answer(waiting, admission),
                        }
                    }
                    self.reconsider(denied, since).await;
                }
                Err(error) if error.is_transient() => self.fail(batch, &error),
                Err(error) if batch.len() > 1 => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        calls = batch.len(),
                        "a batch of admissions was refused and is halved"
                    );
                    let second = batch.split_off(batch.len() / 2);
                    batches.extend([second, batch]);
                }
                Err(error) => match batch.pop() {
                    Some(waiting) if waiting.ask.details != BARE => batches.push(vec![without_texts(waiting)]),
                    last => self.fail(last.into_iter().collect(), &error),
                },
            }
        }
    }

    /// Calls that have ended here may still hold what these were denied for. It is given back first: nobody is denied for
    /// a call whose end its client has seen.
    async fn reconsider(&mut self, denied: Vec<(Waiting, Denial)>, since: Instant) {
        if denied.is_empty() {
            return;
        }
        let (batch, mut denials): (Vec<_>, Vec<_>) = denied.into_iter().unzip();
        let mut answers = Vec::new();
        if self.are_settled(since).await {
            // If the database has gone away since, the denials stand.
            answers = self.ask(&batch).await.unwrap_or_default();
        }
        if answers.is_empty() {
            answers.extend(denials.drain(..).map(Admission::Denied));
        }
        for (waiting, admission) in batch.into_iter().zip(answers) {
            self.answer(waiting, admission);
        }
    }

    /// Has settled what has ended. False if there was nothing since then, or if it takes too long.
    async fn are_settled(&self, since: Instant) -> bool {
        let (settled, answer) = oneshot::channel();
        let asking = async {
            self.wanted.send(Wanted { since, settled }).await.ok()?;
            answer.await.ok()
        };
        timeout(SETTLED_WITHIN, asking).await.ok().flatten().unwrap_or(false)
    }

    /// Sends a batch, once more if its outcome is unknown.
    async fn ask(&mut self, batch: &[Waiting]) -> Result<Vec<Admission>, StoreError> {
        let asks: Vec<&Ask> = batch.iter().map(|waiting| &*waiting.ask).collect();
        let mut tried = false;
        let mut again = batch.iter().any(Waiting::is_again);
        let mut new_starts = 0;
        loop {
            let instance = self.standing.id();
            let epoch = match self.epoch {
                Some(epoch) => epoch,
                None => {
                    // Nothing new before what runs already is back.
                    let epoch = self.link.reassert(instance, &self.live.rows(self.number)).await?;
                    *self.epoch.insert(epoch)
                }
            };
            let was_connected = self.link.is_connected();
            match self.link.admit(instance, epoch, again, &asks).await {
                Err(StoreError::EpochChanged) if new_starts < NEW_STARTS => {
                    tracing::warn!(
                        lane = self.number,
                        "the database has recovered from a crash, open calls are put back"
                    );
                    self.epoch = None;
                    new_starts += 1;
                }
                Err(StoreError::InstanceLost) if new_starts < NEW_STARTS => {
                    self.standing.doubted(instance).await;
                    new_starts += 1;
                }
                // The connection was there and broke, perhaps after the commit.
                Err(error @ (StoreError::Unavailable { .. } | StoreError::Timeout { .. })) => {
                    self.doubts.notify_one();
                    if tried || !was_connected {
                        return Err(error);
                    }
                    (tried, again) = (true, true);
                }
                outcome => return outcome,
            }
        }
    }

    fn answer(&self, waiting: Waiting, admission: Admission) {
        let Waiting { ask, reply } = waiting;
        match (reply, admission) {
            (Reply::Now { permit, to }, Admission::Admitted { at, output_tokens, headroom }) => {
                let row = OpenCallRow::held(ask, Some(at), output_tokens);
                self.live.keep(row.clone());
                let call = OpenCall::new(permit, row, headroom, None);
                if let Err(Ok(Outcome::Open(call))) = to.send(Ok(Outcome::Open(Box::new(call)))) {
                    // The caller has left, and nothing was sent.
                    call.finish(Ending::Fault, 499, Some("abandoned"));
                }
            }
            (Reply::Now { to, .. }, Admission::Denied(denial)) => {
                // A caller that has left does not hear of it.
                let _ = to.send(Ok(Outcome::Denied(denial)));
            }
            (Reply::Now { to, .. }, Admission::Refused { code }) => {
                let _ = to.send(Ok(Outcome::Refused { code }));
            }
            (Reply::Later { verdict, .. }, Admission::Admitted { at, output_tokens, .. }) => {
                let row = OpenCallRow::held(ask, Some(at), output_tokens);
                self.live.keep(row.clone());
                verdict.send_replace(Verdict::Admitted(row));
            }
            (Reply::Later { verdict, .. }, Admission::Denied(denial)) => {
                verdict.send_replace(Verdict::Overruled(Overruling::Denied(denial)));
            }
            (Reply::Later { verdict, .. }, Admission::Refused { code }) => {
                verdict.send_replace(Verdict::Overruled(Overruling::Refused(code)));
            }
        }
    }

    fn fail(&mut self, batch: Vec<Waiting>, error: &StoreError) {
        self.reachable.store(false, Ordering::Relaxed);
        tracing::warn!(error = error as &dyn std::error::Error, calls = batch.len(), "admission failed");
        for waiting in batch {
            match waiting.reply {
                Reply::Now { to, .. } => {
                    let _ = to.send(Err(LedgerError::from(error)));
                }
                Reply::Later { verdict, .. } if error.is_transient() => {
                    self.unsent.push(Waiting { ask: waiting.ask, reply: Reply::Later { verdict, again: true } });
                    self.due = Some(Instant::now() + PAUSE);
                }
                // It runs without an admission: its settlement charges it directly.
                Reply::Later { .. } => {}
            }
        }
    }
}

/// The call as what will be left of it when its own words cannot be written.
pub(crate) const BARE: &str = r#"{"operation":"unknown"}"#;

fn without_texts(waiting: Waiting) -> Waiting {
    tracing::warn!(request_id = %waiting.ask.request, "an admission is written without its texts");
    Waiting { ask: Arc::new(Ask { details: BARE.to_owned(), ..(*waiting.ask).clone() }), ..waiting }
}
