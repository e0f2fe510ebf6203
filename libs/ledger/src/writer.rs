//! The settlement writer: takes finished calls off the request path and does not forget one before it is durable.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use domain::{ApiKeyId, ProjectId};
use store::StoreError;
use store::instances::Standing;
use store::ledger::{Ask, Entry, LedgerEpoch, LedgerLink, Settlement};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::call::{Handed, Verdict};
use crate::lane::BARE;
use crate::live::LiveCalls;
use crate::parked::{Parked, by_project, is_mixed};
use crate::place::Room;

/// Calls that may be open, or ended and not yet durable in the ledger, at once in one process; admission waits beyond it.
pub(crate) const CAPACITY: usize = 8192;
const BATCH: usize = 128;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a settlement waits for others to go with it, where nobody needs what it gives back: each statement takes the
/// database's time from the admissions.
const GATHER: Duration = Duration::from_millis(4);

/// How long a call that ended before its admission was decided waits until that is looked at again.
const UNDECIDED: Duration = Duration::from_millis(10);

/// How long what is settled waits for its flush: one serves everything before it.
const FLUSH_AFTER: Duration = Duration::from_millis(10);

/// Settled calls that may wait for one flush.
const UNFLUSHED: usize = 1024;

/// How long a flush that is due may still wait while there is always something to settle.
const FLUSH_BY: Duration = Duration::from_millis(100);

/// Whose tiers a call counts in.
#[derive(Clone, Copy)]
pub(crate) struct Payer {
    pub(crate) project: ProjectId,
    pub(crate) key: Option<ApiKeyId>,
}

/// Asks for everything that was handed in until now to be settled at once.
pub(crate) struct Wanted {
    /// Who was denied, and a moment before.
    pub(crate) of: Vec<(Payer, Instant)>,
    /// Told of each whether a call of the same project or key was settled since.
    pub(crate) settled: oneshot::Sender<Vec<bool>>,
}

/// The writer of a process.
pub(crate) struct Writer {
    link: LedgerLink,
    standing: Standing,
    live: LiveCalls,
    room: Room,
    /// Settled, and not known to be durable.
    unflushed: Vec<Settlement>,
    flush_at: Option<Instant>,
    /// Ended before its admission was decided.
    undecided: Vec<Handed>,
    undecided_until: Option<Instant>,
    /// Of projects that somebody has locked, or whose key.
    aside: Parked<Settlement>,
    /// When calls were settled, the last ones of each.
    settled: VecDeque<(Instant, Payer)>,
    /// The history that the last flush was on. What was settled since is lost if the next one finds another.
    epoch: Option<LedgerEpoch>,
}

impl Writer {
    pub(crate) fn new(link: LedgerLink, standing: Standing, live: LiveCalls, room: Room) -> Self {
        Self {
            link,
            standing,
            live,
            room,
            unflushed: Vec::new(),
            flush_at: None,
            undecided: Vec::new(),
            undecided_until: None,
            aside: Parked::new(),
            settled: VecDeque::new(),
            epoch: None,
        }
    }

    /// Settles what comes in until `stop` fires, then what is left, those calls included that are still open. It returns
    /// when every place has been used or given back and everything is durable; give the wait for that a deadline.
    pub(crate) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Handed>,
        mut wanted: mpsc::Receiver<Wanted>,
        mut stop: oneshot::Receiver<()>,
    ) {
        let mut handed = Vec::with_capacity(BATCH);
        // When what was handed in is settled.
        let mut due: Option<Instant> = None;
        let mut open = true;
        loop {
            let at = |instant: Option<Instant>| sleep_until(instant.unwrap_or_else(Instant::now));
            tokio::select! {
                biased;
                _ = &mut stop, if open => {
                    open = false;
                    inbox.close();
                    due = Some(Instant::now());
                }
                Some(wanted) = wanted.recv() => {
                    // Whoever asks has seen its calls end, so they are in the inbox.
                    while let Ok(more) = inbox.try_recv() {
                        handed.push(more);
                    }
                    self.settle(&mut handed).await;
                    due = None;
                    let settled = wanted.of.iter().map(|(payer, since)| self.has_settled(*payer, *since)).collect();
                    // Who asked may have left.
                    let _ = wanted.settled.send(settled);
                }
                received = inbox.recv_many(&mut handed, BATCH), if handed.len() < BATCH => {
                    if received == 0 {
                        break;
                    }
                    let waits = open && !handed.iter().any(|handed| handed.is_wanted);
                    let latest = Instant::now() + if waits { GATHER } else { Duration::ZERO };
                    due = Some(due.map_or(latest, |due| due.min(latest)));
                }
                () = at(due), if due.is_some() => {
                    self.settle(&mut handed).await;
                    due = None;
                }
                () = at(self.undecided_until), if self.undecided_until.is_some() => self.look_again().await,
                () = self.aside.due() => self.settle_aside().await,
                () = at(self.flush_at), if self.flush_at.is_some() => self.flush().await,
            }
            self.catch_up().await;
        }
        self.settle(&mut handed).await;
        while self.undecided_until.is_some() || !self.aside.is_empty() {
            tokio::select! {
                () = sleep(UNDECIDED), if self.undecided_until.is_some() => self.look_again().await,
                () = self.aside.due() => self.settle_aside().await,
            }
        }
        self.flush().await;
        self.link.close().await;
    }

    /// Does what is overdue, which a busy inbox would keep waiting for ever.
    async fn catch_up(&mut self) {
        let now = Instant::now();
        let is_over = |moment: Option<Instant>| moment.is_some_and(|moment| moment <= now);
        if is_over(self.undecided_until) {
            self.look_again().await;
        }
        if is_over(self.aside.due_at()) {
            self.settle_aside().await;
        }
        if self.unflushed.len() >= UNFLUSHED || is_over(self.flush_at.map(|due| due + FLUSH_BY)) {
            self.flush().await;
        }
    }

    /// Settles what was handed in, and remembers it until it is durable.
    async fn settle(&mut self, handed: &mut Vec<Handed>) {
        let mut batch = Vec::with_capacity(handed.len());
        for mut handed in handed.drain(..) {
            if decide(&mut handed) {
                let settlement = handed.settlement;
                let project = settlement.call.ask.project;
                if self.aside.holds(project) {
                    self.aside.join(project, [settlement]);
                } else {
                    batch.push(settlement);
                }
            } else {
                self.undecided.push(handed);
                self.undecided_until.get_or_insert_with(|| Instant::now() + UNDECIDED);
            }
        }
        if !batch.is_empty() {
            if self.epoch.is_none() {
                // Without it the first flush finds another one, and all is sent twice.
                self.epoch = self.link.flush().await.ok();
            }
            self.write(batch).await;
            self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH_AFTER);
        }
    }

    /// Looks whether it is known by now what calls held.
    async fn look_again(&mut self) {
        self.undecided_until = None;
        let mut undecided = std::mem::take(&mut self.undecided);
        self.settle(&mut undecided).await;
    }

    /// Tries what was put aside.
    async fn settle_aside(&mut self) {
        let batch = self.aside.take(BATCH);
        // The others need not wait to find out that it is still locked.
        let batch = self.put_locked_aside(batch).await;
        self.write(batch).await;
        self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH_AFTER);
    }

    fn has_settled(&self, payer: Payer, since: Instant) -> bool {
        let is_of =
            |settled: &Payer| settled.project == payer.project || (settled.key.is_some() && settled.key == payer.key);
        self.settled.iter().rev().take_while(|(at, _)| *at >= since).any(|(_, settled)| is_of(settled))
    }

    /// Makes what was settled durable, for as long as that takes. A crash of the database may have lost it: then it is
    /// settled again, which changes nothing where it is there.
    async fn flush(&mut self) {
        self.flush_at = None;
        let mut pause = FIRST_PAUSE;
        while !self.unflushed.is_empty() {
            match self.link.flush().await {
                Ok(epoch) if self.epoch == Some(epoch) => {
                    self.room.give_back(self.unflushed.len());
                    for settlement in self.unflushed.drain(..) {
                        self.live.forget(&settlement.call);
                    }
                }
                Ok(epoch) => {
                    self.epoch = Some(epoch);
                    let lost = std::mem::take(&mut self.unflushed);
                    self.write(lost).await;
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        calls = self.unflushed.len(),
                        "settlements wait to be made durable"
                    );
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Settles calls, for as long as that takes; sending one again that is settled changes nothing.
    async fn write(&mut self, batch: Vec<Settlement>) {
        let mut batches: Vec<Vec<Settlement>> = vec![batch];
        while let Some(mut batch) = batches.pop() {
            if batch.len() > BATCH {
                let second = batch.split_off(BATCH);
                batches.extend([second, batch]);
                continue;
            }
            let mut pause = FIRST_PAUSE;
            loop {
                match self.link.settle(self.standing.id(), &batch).await {
                    Ok(_) => {
                        self.note(&batch);
                        self.unflushed.append(&mut batch);
                        break;
                    }
                    // Somebody has locked a project or a key: its calls wait without the others.
                    Err(StoreError::Conflict) if is_mixed(&batch, |settlement| settlement.call.ask.project) => {
                        let calls = batch.len();
                        let free = self.put_locked_aside(batch).await;
                        if free.len() < calls {
                            batches.push(free);
                        } else {
                            batches.extend(by_project(free, |settlement| settlement.call.ask.project).into_values());
                        }
                        break;
                    }
                    Err(StoreError::Conflict) => {
                        self.put_aside(batch);
                        break;
                    }
                    // Whatever is not the values' fault passes, however long it takes: nothing is dropped for it.
                    Err(error) if !error.is_about_values() => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            calls = batch.len(),
                            "settlements wait for the database"
                        );
                        sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                    Err(error) if batch.len() > 1 => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            calls = batch.len(),
                            "a batch of settlements was refused and is halved"
                        );
                        let second = batch.split_off(batch.len() / 2);
                        batches.extend([second, batch]);
                        break;
                    }
                    Err(error) => {
                        let Some(settlement) = batch.first_mut() else { break };
                        if !simplify(settlement) {
                            // It stays known, so that its open row is not taken for one that nothing was sent for.
                            self.room.give_back(1);
                            let request_id = settlement.call.ask.request;
                            let error: &dyn std::error::Error = &error;
                            tracing::error!(error, %request_id, "a settlement was refused for good and stays open");
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Puts settlements of projects aside that are locked now, and returns the others.
    async fn put_locked_aside(&mut self, batch: Vec<Settlement>) -> Vec<Settlement> {
        let payers = batch.iter().map(|settlement| (settlement.call.ask.project, settlement.call.ask.key));
        // If it cannot be asked, settlement does not get through either.
        let locked = self.link.list_locked_projects(payers).await.unwrap_or_default();
        let (locked, free): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|settlement| locked.contains(&settlement.call.ask.project));
        self.put_aside(locked);
        free
    }

    fn put_aside(&mut self, batch: Vec<Settlement>) {
        if batch.is_empty() {
            return;
        }
        for (project, settlements) in by_project(batch, |settlement| settlement.call.ask.project) {
            self.aside.park(project, settlements, LONGEST_PAUSE);
        }
        tracing::warn!(calls = self.aside.len(), "settlements wait for a lock that somebody holds");
    }

    /// Remembers whose calls were settled, and when.
    fn note(&mut self, batch: &[Settlement]) {
        let now = Instant::now();
        let payers = batch.iter().map(|settlement| &settlement.call.ask);
        self.settled.extend(payers.map(|ask| (now, Payer { project: ask.project, key: ask.key })));
        let beyond = self.settled.len().saturating_sub(CAPACITY);
        self.settled.drain(..beyond);
    }
}

/// Makes a settlement that was refused simpler: without its texts, then charged by what it held, as if its process were
/// gone. False when it is as simple as can be.
fn simplify(settlement: &mut Settlement) -> bool {
    let request_id = settlement.call.ask.request;
    if !settlement.entry.is_bare() || settlement.call.ask.details != BARE {
        tracing::warn!(%request_id, "a settlement is written without its texts");
        settlement.entry = settlement.entry.bare();
        settlement.call.ask = Arc::new(Ask { details: BARE.to_owned(), ..(*settlement.call.ask).clone() });
        return true;
    }
    let Settlement { call, tokens, cost, entry, .. } = settlement;
    let held = Entry {
        status: entry.status,
        estimated: true,
        streamed: entry.streamed,
        latency_ms: entry.latency_ms,
        attempts: entry.attempts,
        ..Entry::default()
    };
    if (*tokens, *cost) == (call.held_tokens, call.held_cost) && *entry == held {
        return false;
    }
    tracing::warn!(%request_id, "a settlement is charged by what the call held");
    (*tokens, *cost, *entry) = (call.held_tokens, call.held_cost, held);
    true
}

/// Looks whether it is known what the call of a settlement holds.
fn decide(handed: &mut Handed) -> bool {
    let Some(verdict) = &handed.verdict else { return true };
    let is_ended = verdict.has_changed().is_err();
    match &*verdict.borrow() {
        Verdict::Admitted(row) => handed.settlement.call = row.clone(),
        // It holds nothing: all that it is charged is in excess.
        Verdict::Overruled(_) => {
            handed.settlement.call.held_tokens = 0;
            handed.settlement.call.held_cost = domain::NanoUsd::ZERO;
        }
        // Its lane has ended without an answer: it is charged as a call whose admission was lost.
        Verdict::Pending => return is_ended,
    }
    true
}

#[cfg(test)]
mod tests {
    use domain::{NanoUsd, Price, RequestId};
    use store::ledger::OpenCallRow;
    use testkit::{RoleName, TestDatabase, until};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::place::Places;

    const BUDGET: Duration = Duration::from_secs(30);

    struct Fixture {
        database: TestDatabase,
        project: ProjectId,
        places: Places,
        live: LiveCalls,
        stop: oneshot::Sender<()>,
        writer: JoinHandle<()>,
        _wanted: mpsc::Sender<Wanted>,
    }

    /// A writer with so many places.
    async fn fixture(places: usize) -> anyhow::Result<Fixture> {
        let database = testkit::database().await?;
        let project = database.insert_project("p", "").await?;
        let store = database.store(RoleName::Edge)?;
        let (places, inbox, room) = Places::new(places);
        let live = LiveCalls::new(1);
        let (stop, stopped) = oneshot::channel();
        let (wanted, asked_for) = mpsc::channel(1);
        let writer = Writer::new(store.ledger_link(), testkit::standing(&store).await?, live.clone(), room);
        let writer = tokio::spawn(writer.run(inbox, asked_for, stopped));
        Ok(Fixture { database, project, places, live, stop, writer, _wanted: wanted })
    }

    impl Fixture {
        /// Hands in the settlement of a call that the database knows nothing of.
        async fn hand_in(&self) -> anyhow::Result<RequestId> {
            let ask = Ask {
                request: RequestId::new(),
                project: self.project,
                key: None,
                prompt_tokens: 10,
                output_tokens: 100,
                min_output: 1,
                input_price: Price(0),
                output_price: Price(0),
                fixed_cost: NanoUsd(0),
                details: r#"{"operation":"chat"}"#.to_owned(),
            };
            let call = OpenCallRow::held(Arc::new(ask), None, 100);
            self.live.keep(call.clone());
            let place = timeout(BUDGET, self.places.take()).await??;
            let request = call.ask.request;
            let settlement = Settlement { call, counts: false, tokens: 6, cost: NanoUsd(0), entry: Entry::default() };
            place.hand_in(Handed { settlement, verdict: None, is_wanted: true });
            Ok(request)
        }
    }

    #[tokio::test]
    async fn a_call_keeps_its_place_until_its_settlement_is_durable() -> anyhow::Result<()> {
        let fixture = fixture(2).await?;
        let lock = fixture.database.lock_project(fixture.project).await?;
        for _ in 0..2 {
            fixture.hand_in().await?;
        }
        until("the writer to wait for the lock", async || fixture.database.has_lock_waiters().await).await?;
        assert!(timeout(Duration::ZERO, fixture.places.take()).await.is_err(), "both are only in memory");
        lock.release().await?;
        let places = (fixture.hand_in().await?, fixture.hand_in().await?);
        assert_ne!(places.0, places.1);
        until("all are settled", async || Ok(fixture.live.ids().is_empty())).await?;
        assert!(fixture.stop.send(()).is_ok());
        timeout(BUDGET, fixture.writer).await??;
        assert_eq!(fixture.database.tier_totals(fixture.project).await?.log_rows, 4);
        Ok(())
    }

    #[tokio::test]
    async fn a_call_whose_settlement_is_refused_for_good_stays_known_and_frees_its_place() -> anyhow::Result<()> {
        let fixture = fixture(1).await?;
        fixture
            .database
            .execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                     $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'invalid_parameter_value'; END $$;
                 CREATE TRIGGER refuse BEFORE INSERT ON request_logs FOR EACH ROW EXECUTE FUNCTION refuse()",
            )
            .await?;
        let refused = fixture.hand_in().await?;
        timeout(BUDGET, fixture.places.take()).await??;
        // Or its open row would be taken for that of an admission whose reply was lost.
        assert!(fixture.live.ids().contains(&refused));
        assert!(fixture.stop.send(()).is_ok());
        timeout(BUDGET, fixture.writer).await??;
        Ok(())
    }
}
