//! Lanes of admission: while a statement is in flight, later arrivals gather for the next one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::ProjectId;
use store::instances::Standing;
use store::ledger::{Admission, Ask, LedgerEpoch, LedgerLink, OpenCallRow};
use store::{Store, StoreError};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::call::{Ending, OpenCall, Overruling, Verdict};
use crate::denied::{Denied, LastTries, Unsaid};
use crate::error::LedgerError;
use crate::live::LiveCalls;
use crate::parked::{Parked, by_project, is_mixed};
use crate::place::Place;
use crate::pulse::Pulse;
use crate::service::Outcome;
use crate::writer::Wanted;

const BATCH: usize = 64;

/// How often a lane begins anew within one batch because the ledger's epoch or its own instance has changed.
const NEW_STARTS: usize = 4;

/// Between two tries of admissions that nobody waits for.
const PAUSE: Duration = Duration::from_millis(200);

/// How long an admission that nobody waits for waits for others to go with it.
const GATHER: Duration = Duration::from_millis(4);

/// For how long asks of a project are turned away after somebody held its row, or its key's, for too long. Then it is looked
/// whether that is over, before the others are made to wait for it again.
const LOCKED: Duration = Duration::from_secs(2);

/// An ask on its way to the database.
pub(crate) struct Waiting {
    pub(crate) ask: Arc<Ask>,
    pub(crate) reply: Reply,
}

/// Who hears of the outcome.
pub(crate) enum Reply {
    /// A caller that waits, with the place its settlement will need.
    Now { place: Place, to: oneshot::Sender<Result<Outcome, LedgerError>> },
    /// A call that has begun. It is tried until the database has decided; `again` says that an earlier try may have
    /// been committed without its answer having arrived.
    Later { verdict: watch::Sender<Verdict>, begun: Instant, again: bool },
}

impl Waiting {
    fn is_wanted(&self) -> bool {
        match &self.reply {
            Reply::Now { to, .. } => !to.is_closed(),
            // It runs, whoever still listens.
            Reply::Later { .. } => true,
        }
    }

    /// When it began, where it did not wait.
    fn begun(&self) -> Option<Instant> {
        match self.reply {
            Reply::Now { .. } => None,
            Reply::Later { begun, .. } => Some(begun),
        }
    }

    fn is_again(&self) -> bool {
        matches!(self.reply, Reply::Later { again: true, .. })
    }
}

/// What a lane tells the others, and is told by them.
pub(crate) struct Ties {
    pub(crate) pulse: Arc<Pulse>,
    /// Told when admissions may have been made that nobody knows of.
    pub(crate) doubts: Arc<Notify>,
    /// The epoch that the keeper has seen last.
    pub(crate) seen_epoch: watch::Receiver<Option<LedgerEpoch>>,
    /// Where to ask for what has ended to be settled.
    pub(crate) wanted: mpsc::Sender<Wanted>,
}

/// One lane.
pub(crate) struct Lane {
    number: usize,
    link: LedgerLink,
    standing: Standing,
    live: LiveCalls,
    pulse: Arc<Pulse>,
    doubts: Arc<Notify>,
    seen_epoch: watch::Receiver<Option<LedgerEpoch>>,
    epoch: Option<LedgerEpoch>,
    unsent: Vec<Waiting>,
    /// When the unsent are sent at the latest.
    due: Option<Instant>,
    /// Asks of running calls that could not be made.
    parked: Parked<Waiting>,
    locked: HashMap<ProjectId, Instant>,
    unsaid: Unsaid,
    last_tries: LastTries,
}

impl Lane {
    pub(crate) fn new(number: usize, store: &Store, standing: Standing, live: LiveCalls, ties: Ties) -> Self {
        let Ties { pulse, doubts, seen_epoch, wanted } = ties;
        Self {
            number,
            link: store.ledger_link(),
            standing,
            live,
            pulse,
            doubts,
            seen_epoch,
            epoch: None,
            unsent: Vec::new(),
            due: None,
            parked: Parked::new(),
            locked: HashMap::new(),
            unsaid: Unsaid::new(wanted),
            last_tries: LastTries::default(),
        }
    }

    /// Admits what comes in, batch by batch, until the ledger is dropped.
    ///
    /// The statement runs in this task and not in the caller's future: a caller that is dropped while it waits leaves an
    /// answer that nobody takes, and the call in it is settled.
    pub(crate) async fn run(mut self, mut inbox: mpsc::Receiver<Waiting>) {
        let mut open = true;
        while open
            || !self.unsent.is_empty()
            || !self.parked.is_empty()
            || !self.unsaid.is_empty()
            || !self.last_tries.is_empty()
        {
            match self.due {
                Some(due) => self.pulse.works(due - GATHER),
                None => self.pulse.rests(),
            }
            let due = self.due.unwrap_or_else(Instant::now);
            tokio::select! {
                received = inbox.recv_many(&mut self.unsent, BATCH), if open => open = received > 0,
                () = sleep_until(due), if self.due.is_some() => {}
                () = self.parked.due() => {
                    self.begin();
                    let batch = self.parked.take(BATCH);
                    let batch = self.without_locked(batch).await;
                    self.admit(batch).await;
                    continue;
                }
                known = self.unsaid.known() => {
                    self.begin();
                    self.ask_again(known).await;
                    continue;
                }
                () = self.last_tries.due() => {
                    self.begin();
                    self.say().await;
                    continue;
                }
                Ok(()) = self.seen_epoch.changed() => {
                    self.begin();
                    self.put_back().await;
                    continue;
                }
            }
            let now = Instant::now();
            let oldest = self.unsent.iter().filter_map(Waiting::begun).min().unwrap_or(now);
            // Who waits takes those along that nobody waits for.
            let hurries = |waiting: &Waiting| waiting.begun().is_none();
            let gathered = self.unsent.len() >= BATCH || oldest + GATHER <= now;
            if open && !gathered && !self.unsent.iter().any(hurries) {
                self.due = Some(oldest + GATHER);
                continue;
            }
            self.due = None;
            self.pulse.works(oldest);
            let mut batch = std::mem::take(&mut self.unsent);
            batch.retain(Waiting::is_wanted);
            let batch = self.turn_away(batch);
            let mut batch = self.without_locked(batch).await;
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(BATCH));
                self.admit(batch).await;
                batch = rest;
            }
        }
        self.link.close().await;
    }

    /// Begins something that may take a while.
    fn begin(&self) {
        // What gathers meanwhile waits for longer.
        if self.due.is_none() {
            self.pulse.works(Instant::now());
        }
    }

    /// Turns asks of locked projects away, and returns the others.
    fn turn_away(&mut self, batch: Vec<Waiting>) -> Vec<Waiting> {
        let now = Instant::now();
        let is_locked = |waiting: &Waiting| self.locked.get(&waiting.ask.project).is_some_and(|until| *until > now);
        let (away, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_locked);
        self.fail(away, &StoreError::Conflict);
        rest
    }

    /// Looks again at projects that were locked when they were last asked for. Fails what is still locked, and returns the
    /// others.
    async fn without_locked(&mut self, batch: Vec<Waiting>) -> Vec<Waiting> {
        let (doubtful, mut rest): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiting| self.locked.contains_key(&waiting.ask.project));
        if !doubtful.is_empty() {
            rest.extend(self.fail_locked(doubtful).await);
        }
        rest
    }

    /// Fails asks of projects that are locked now, and returns the others.
    async fn fail_locked(&mut self, batch: Vec<Waiting>) -> Vec<Waiting> {
        let payers = batch.iter().map(|waiting| (waiting.ask.project, waiting.ask.key));
        // If it cannot be asked, admission does not get through either.
        let locked = self.link.list_locked_projects(payers).await.unwrap_or_default();
        let (locked, free): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiting| locked.contains(&waiting.ask.project));
        self.locked.extend(locked.iter().map(|waiting| (waiting.ask.project, Instant::now() + LOCKED)));
        self.fail(locked, &StoreError::Conflict);
        free
    }

    /// Puts the calls of this lane back that a crash of the database may have lost, where no admission does it.
    async fn put_back(&mut self) {
        let seen = *self.seen_epoch.borrow_and_update();
        let rows = self.live.rows(self.number);
        if rows.is_empty() || seen.is_none() || seen == self.epoch {
            return;
        }
        // If it cannot be done now, the next look of the keeper is the next try.
        self.epoch = self.link.reassert(self.standing.id(), &rows).await.ok();
    }

    /// Asks once more for what was denied before calls of the same project or key were settled here. What is still denied
    /// is kept for a last try.
    async fn ask_again(&mut self, known: Vec<(Denied, bool)>) {
        let (again, rest): (Vec<_>, Vec<_>) = known.into_iter().partition(|(_, is_given_back)| *is_given_back);
        rest.into_iter().for_each(|(denied, _)| self.last_tries.push(denied));
        for (denied, admission) in self.asked_again(again.into_iter().map(|(denied, _)| denied).collect()).await {
            match admission {
                Admission::Denied(denial) if denial.held > 0 => self.last_tries.push(Denied { denial, ..denied }),
                admission => self.answer(denied.waiting, admission),
            }
        }
    }

    /// Asks a last time for what was denied, and says what comes of it.
    async fn say(&mut self) {
        let denied = self.last_tries.take();
        for (denied, admission) in self.asked_again(denied).await {
            self.answer(denied.waiting, admission);
        }
    }

    /// Asks anew for what was denied. If the database has gone away since, the denials stand.
    async fn asked_again(&mut self, mut denied: Vec<Denied>) -> Vec<(Denied, Admission)> {
        denied.retain(|denied| denied.waiting.is_wanted());
        let mut answers = Vec::with_capacity(denied.len());
        for part in denied.chunks(BATCH) {
            let asks: Vec<&Waiting> = part.iter().map(|denied| &denied.waiting).collect();
            match self.ask(&asks).await {
                Ok(admissions) => answers.extend(admissions),
                Err(_) => answers.extend(part.iter().map(|denied| Admission::Denied(denied.denial.clone()))),
            }
        }
        denied.into_iter().zip(answers).collect()
    }

    /// Admits a batch; one that fails by its values is halved until the one at fault is alone.
    async fn admit(&mut self, batch: Vec<Waiting>) {
        let mut batches = vec![batch];
        while let Some(mut batch) = batches.pop() {
            if batch.is_empty() {
                continue;
            }
            let since = Instant::now();
            let outcome = self.ask(&batch.iter().collect::<Vec<_>>()).await;
            match outcome {
                Ok(admissions) => {
                    self.go_on(&batch);
                    for (waiting, admission) in batch.into_iter().zip(admissions) {
                        match admission {
                            Admission::Denied(denial) if denial.held > 0 => {
                                self.unsaid.push(Denied { waiting, denial, since });
                            }
                            admission => self.answer(waiting, admission),
                        }
                    }
                }
                // Somebody has locked a project or a key: its calls fail without the others.
                Err(StoreError::Conflict) if is_mixed(&batch, |waiting| waiting.ask.project) => {
                    let calls = batch.len();
                    let free = self.fail_locked(batch).await;
                    if free.len() < calls {
                        batches.push(free);
                    } else {
                        batches.extend(by_project(free, |waiting| waiting.ask.project).into_values());
                    }
                }
                Err(StoreError::Conflict) => {
                    let until = Instant::now() + LOCKED;
                    self.locked.extend(batch.iter().map(|waiting| (waiting.ask.project, until)));
                    self.fail(batch, &StoreError::Conflict);
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

    /// Lets calls of the batch's projects begin without waiting again, unless some that have begun are undecided.
    fn go_on(&mut self, batch: &[Waiting]) {
        if self.pulse.is_any_held_up() {
            for project in batch.iter().map(|waiting| waiting.ask.project) {
                self.locked.remove(&project);
                if !self.parked.holds(project) {
                    self.pulse.goes_on(project);
                }
            }
        }
    }

    async fn ask(&mut self, batch: &[&Waiting]) -> Result<Vec<Admission>, StoreError> {
        let outcome = self.send(batch).await;
        let is_away =
            outcome.as_ref().is_err_and(|error| error.is_transient() && !matches!(error, StoreError::Conflict));
        self.pulse.answered(is_away);
        outcome
    }

    /// Sends a batch, once more if its outcome is unknown.
    async fn send(&mut self, batch: &[&Waiting]) -> Result<Vec<Admission>, StoreError> {
        let asks: Vec<&Ask> = batch.iter().map(|waiting| &*waiting.ask).collect();
        let mut tried = false;
        let mut again = batch.iter().any(|waiting| waiting.is_again());
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
            (Reply::Now { place, to }, Admission::Admitted { at, output_tokens, headroom }) => {
                let row = OpenCallRow::held(ask, Some(at), output_tokens);
                self.live.keep(row.clone());
                let call = OpenCall::new(place, row, headroom, None);
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
        if batch.is_empty() {
            return;
        }
        let is_locked = matches!(error, StoreError::Conflict);
        tracing::warn!(error = error as &dyn std::error::Error, calls = batch.len(), "admission failed");
        for waiting in batch {
            let project = waiting.ask.project;
            if is_locked {
                self.pulse.holds_up(project);
            }
            match waiting.reply {
                Reply::Now { to, .. } => {
                    let _ = to.send(Err(LedgerError::from(error)));
                }
                Reply::Later { verdict, begun, .. } if error.is_transient() => {
                    self.pulse.holds_up(project);
                    let again = Waiting { ask: waiting.ask, reply: Reply::Later { verdict, begun, again: true } };
                    self.parked.park(project, [again], if is_locked { LOCKED } else { PAUSE });
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
