//! Projects and keys whose rows somebody keeps locked.

use std::sync::Mutex;
use std::time::Duration;

use ledger::{Ending, Ledger, LedgerError, Outcome};
use store::Store;
use store::ledger::Ask;
use testkit::{RoleName, until};
use tokio::task::JoinSet;

use crate::{BUDGET, Payer, ask, open, start};

#[tokio::test]
async fn a_tier_that_is_locked_for_longer_than_a_second_makes_its_batch_unavailable_and_takes_nothing()
-> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_day = 1000").await?;
    let lock = database.lock_project(payer.project).await?;
    let outcomes = tokio::join!(ledger.admit(ask(payer, 10, 100)), ledger.admit(ask(payer, 10, 100)));
    assert!(matches!(outcomes, (Err(LedgerError::Unavailable), Err(LedgerError::Unavailable))));
    lock.release().await?;
    // All of the budget is there.
    let call = open(once_unlocked(&ledger, || ask(payer, 900, 100)).await?);
    assert_eq!((call.output_tokens(), database.admitted_together(payer.project).await?), (100, vec![1]));
    call.finish(Ending::Fault, 502, None);
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    Ok(())
}

/// Admits as soon as the ledger no longer turns a project away that was locked.
async fn once_unlocked(ledger: &Ledger, ask: impl Fn() -> Ask) -> anyhow::Result<Outcome> {
    let admitted = Mutex::new(None);
    until("asks to be let through again", async || match ledger.admit(ask()).await {
        Err(LedgerError::Unavailable) => Ok(false),
        outcome => {
            *admitted.lock().unwrap() = Some(outcome?);
            Ok(true)
        }
    })
    .await?;
    Ok(admitted.into_inner().unwrap().unwrap())
}

#[tokio::test]
async fn a_locked_project_does_not_keep_others_of_its_lane_from_being_admitted() -> anyhow::Result<()> {
    let database = testkit::database().await?;
    let mut payers = Vec::new();
    for n in 0..20 {
        let limits = if n == 0 { "" } else { "tokens_per_day = 1000" };
        let project = database.insert_project(&format!("p{n}"), limits).await?;
        let (key, _) = database.insert_project_key(project).await?;
        payers.push(Payer { project, key });
    }
    let mut config = database.config(RoleName::Edge);
    config.acquire_timeout = Duration::from_secs(4);
    let store = Store::new(&config, "test")?;
    let (ledger, tasks) = Ledger::start(&store, &testkit::standing(&store).await?, Duration::from_secs(60));
    // Of each lane many that are locked, each of which would be waited for for a second, and one that is not.
    let (locked, free) = payers.split_at(18);
    let lock = database.lock_projects(&locked.iter().map(|payer| payer.project).collect::<Vec<_>>()).await?;
    // A running call's ask that is tried again and again, and some that wait, all in one batch.
    let running = open(ledger.admit_unlimited(ask(locked[0], 10, 100)).await?);
    let mut admitting = JoinSet::new();
    for payer in payers.iter().copied() {
        let ledger = ledger.clone();
        admitting.spawn(async move { (payer.project, ledger.admit(ask(payer, 10, 100)).await) });
    }
    for (project, outcome) in admitting.join_all().await {
        if free.iter().any(|payer| payer.project == project) {
            open(outcome?).finish(Ending::Fault, 502, None);
        } else {
            assert!(matches!(outcome, Err(LedgerError::Unavailable)));
        }
    }
    lock.release().await?;
    running.finish(Ending::Complete, 200, None);
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn calls_of_a_locked_project_do_not_keep_others_from_being_settled() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_day = 1000").await?;
    let other = database.insert_project("other", "concurrent_requests = 1").await?;
    let (key, _) = database.insert_project_key(other).await?;
    let other = Payer { project: other, key };
    let (blocked, free) =
        (open(ledger.admit(ask(payer, 10, 100)).await?), open(ledger.admit(ask(other, 10, 100)).await?));
    let lock = database.lock_project(payer.project).await?;
    blocked.finish(Ending::Complete, 200, None);
    free.finish(Ending::Complete, 200, None);
    until("what the other one held to be free", async || {
        Ok(matches!(ledger.admit(ask(other, 10, 100)).await?, Outcome::Open(_)))
    })
    .await?;
    lock.release().await?;
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn calls_without_limits_do_not_begin_while_their_project_is_locked() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("").await?;
    let lock = database.lock_project(payer.project).await?;
    let begun = open(ledger.admit_unlimited(ask(payer, 10, 100)).await?);
    assert!(matches!(ledger.admit(ask(payer, 10, 100)).await, Err(LedgerError::Unavailable)));
    // Its row cannot be written, and no more shall run without one.
    for _ in 0..100 {
        assert!(matches!(ledger.admit_unlimited(ask(payer, 10, 100)).await, Err(LedgerError::Unavailable)));
    }
    lock.release().await?;
    begun.finish(Ending::Complete, 200, None);
    open(once_unlocked(&ledger, || ask(payer, 10, 100)).await?).finish(Ending::Complete, 200, None);
    until("both calls to be settled", async || Ok(database.tier_totals(payer.project).await?.log_rows == 2)).await?;
    // All are decided, so the next one begins without its row again.
    let lock = database.lock_project(payer.project).await?;
    open(ledger.admit_unlimited(ask(payer, 10, 100)).await?).finish(Ending::Complete, 200, None);
    lock.release().await?;
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    assert_eq!(database.tier_totals(payer.project).await?.log_rows, 3);
    Ok(())
}
