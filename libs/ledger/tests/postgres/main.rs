//! The ledger of a process on a real database.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of a test fail it by panicking")]

mod locks;
mod settlements;

use std::time::Duration;

use domain::{ApiKeyId, NanoUsd, Price, PriceSnapshot, ProjectId, RequestId};
use ledger::{Ending, Ledger, LedgerError, LedgerTasks, Outcome, PriceSource, Usage};
use store::Store;
use store::ledger::Ask;
use testkit::{DatabaseProxy, RoleName, TestDatabase, until};

const BUDGET: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
struct Payer {
    project: ProjectId,
    key: ApiKeyId,
}

async fn start(limits: &str) -> anyhow::Result<(TestDatabase, Payer, Ledger, LedgerTasks)> {
    let database = testkit::database().await?;
    let project = database.insert_project("p", limits).await?;
    let (key, _) = database.insert_project_key(project).await?;
    let store = database.store(RoleName::Edge)?;
    let (ledger, tasks) = Ledger::start(&store, &testkit::standing(&store).await?, Duration::from_secs(60));
    Ok((database, Payer { project, key }, ledger, tasks))
}

fn ask(payer: Payer, prompt: i64, output: i64) -> Ask {
    Ask {
        request: RequestId::new(),
        project: payer.project,
        key: Some(payer.key),
        prompt_tokens: prompt,
        output_tokens: output,
        min_output: 1,
        input_price: Price(1_000_000),
        output_price: Price(1_000_000),
        fixed_cost: NanoUsd(0),
        details: r#"{"operation":"chat"}"#.to_owned(),
    }
}

fn open(outcome: Outcome) -> Box<ledger::OpenCall> {
    match outcome {
        Outcome::Open(call) => call,
        Outcome::Denied(denial) => panic!("denied: {denial:?}"),
        Outcome::Refused { code } => panic!("refused: {code}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_at_once_leave_used_equal_to_the_log() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_day = 100000").await?;
    let prices = PriceSnapshot { input: Price(1_000_000), output: Price(1_000_000), ..PriceSnapshot::default() };
    let callers: Vec<_> = (0..64)
        .map(|number: i64| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                let mut call = open(ledger.admit(ask(payer, 10, 100)).await?);
                call.priced(prices, PriceSource::User);
                match number % 4 {
                    0 => {
                        call.add_side_charge(3, NanoUsd(1), false);
                        call.sent();
                        call.usage(Usage { prompt: 10, completion: number, ..Usage::default() });
                        call.finish(Ending::Complete, 200, None);
                    }
                    1 => {
                        call.sent();
                        call.delivered(7);
                        drop(call);
                    }
                    2 => call.finish(Ending::Fault, 502, Some("upstream_unreachable")),
                    _ => panic!("a task that panics settles its call too"),
                }
                anyhow::Ok(())
            })
        })
        .collect();
    let mut panics = 0;
    for caller in callers {
        match caller.await {
            Ok(result) => result?,
            Err(error) => panics += i32::from(error.is_panic()),
        }
    }
    assert_eq!(panics, 16);
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    let totals = database.tier_totals(payer.project).await?;
    assert_eq!((totals.open_calls, totals.open_rows, totals.day_tokens_held), (0, 0, 0));
    assert_eq!(totals.log_rows, 64);
    assert_eq!(totals.day_tokens, totals.logged_tokens);
    assert_eq!(totals.day_cost, totals.logged_cost);
    let complete: i64 = (0..64).filter(|n| n % 4 == 0).map(|n| 10 + n + 3).sum();
    assert_eq!(totals.logged_tokens, complete + 16 * 17);
    assert_eq!(totals.logged_requests, 32, "a fault gives its request back, ours as well");
    let logged = database.logged_calls(payer.project).await?;
    let panicked = logged.iter().filter(|call| call.error_code.as_deref() == Some("internal_error"));
    assert_eq!(panicked.map(|call| (call.status, call.charged_tokens)).collect::<Vec<_>>(), [(500, 0); 16]);
    Ok(())
}

#[tokio::test]
async fn a_caller_that_leaves_while_it_waits_leaves_nothing_held() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("").await?;
    // The admission waits inside the database.
    let lock = database.lock_project(payer.project).await?;
    let waiting = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.admit(ask(payer, 10, 100)).await.map(|_| ()) }
    });
    testkit::until("the admission waits for the lock", || async { database.has_lock_waiters().await }).await?;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    lock.release().await?;
    testkit::until("the abandoned call is settled", || async {
        let totals = database.tier_totals(payer.project).await?;
        Ok(totals.log_rows == 1 && totals.open_rows == 0 && totals.open_calls == 0)
    })
    .await?;
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    let totals = database.tier_totals(payer.project).await?;
    assert_eq!((totals.day_tokens, totals.day_tokens_held), (0, 0));
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_open_at_shutdown_is_waited_for() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("").await?;
    let mut call = open(ledger.admit(ask(payer, 10, 100)).await?);
    let finishing = tokio::spawn(tasks.finish(BUDGET));
    until("the shutdown to begin", async || {
        Ok(matches!(ledger.admit(ask(payer, 10, 100)).await, Err(LedgerError::ShuttingDown)))
    })
    .await?;
    assert!(!finishing.is_finished());
    call.sent();
    call.usage(Usage { prompt: 4, completion: 2, ..Usage::default() });
    call.finish(Ending::Complete, 200, None);
    assert!(finishing.await?);
    assert_eq!(database.tier_totals(payer.project).await?.logged_tokens, 6);
    Ok(())
}

#[tokio::test]
async fn a_denial_says_which_cap() -> anyhow::Result<()> {
    let (_database, payer, ledger, _tasks) = start("concurrent_requests = 1").await?;
    let first = open(ledger.admit(ask(payer, 1, 1)).await?);
    let Outcome::Denied(denial) = ledger.admit(ask(payer, 1, 1)).await? else { panic!("two at once were admitted") };
    assert_eq!((denial.code.as_str(), denial.cap, denial.held), ("concurrency_limit", 1, 1));
    first.finish(Ending::Complete, 200, None);
    testkit::until("the slot is free again", || async {
        Ok(matches!(ledger.admit(ask(payer, 1, 1)).await?, Outcome::Open(_)))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn an_absurd_report_of_usage_does_not_stop_the_project() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_month = 1000000").await?;
    for _ in 0..3 {
        let Outcome::Open(mut call) = ledger.admit(ask(payer, 1, 1)).await? else { break };
        call.sent();
        call.usage(Usage { prompt: i64::MAX, completion: i64::MAX, ..Usage::default() });
        call.finish(Ending::Complete, 200, None);
        testkit::until("the call is settled", || async {
            Ok(database.tier_totals(payer.project).await?.open_rows == 0)
        })
        .await?;
    }
    let Outcome::Denied(denial) = ledger.admit(ask(payer, 1, 1)).await? else { panic!("the budget is spent") };
    assert_eq!(denial.code, "budget_monthly");
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    let totals = database.tier_totals(payer.project).await?;
    assert_eq!((totals.day_tokens, totals.day_tokens_held), (totals.logged_tokens, 0));
    Ok(())
}

/// Lets everything that can go on do so, on the one thread of a test.
async fn settle_down() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn calls_that_come_while_a_batch_is_under_way_go_together_in_the_next() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_day = 100000").await?;
    let admit = || {
        let ledger = ledger.clone();
        tokio::spawn(async move { ledger.admit(ask(payer, 10, 100)).await })
    };
    // Whoever waits for more than a second is sent away, so that a machine that stalls has to try again.
    let calls = testkit::eventually("all are admitted", || async {
        let lock = database.lock_project(payer.project).await?;
        let first = admit();
        testkit::until("the first one waits", || async {
            Ok(first.is_finished() || database.has_lock_waiters().await?)
        })
        .await?;
        let next: Vec<_> = (0..10).map(|_| admit()).collect();
        settle_down().await;
        lock.release().await?;
        let mut calls = Vec::new();
        for call in std::iter::once(first).chain(next) {
            match call.await? {
                Ok(outcome) => calls.push(open(outcome)),
                Err(LedgerError::Unavailable) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if calls.len() == 11 {
            return Ok(Some(calls));
        }
        drop(calls);
        testkit::until("none is left", || async { Ok(database.tier_totals(payer.project).await?.open_rows == 0) })
            .await?;
        Ok(None)
    })
    .await?;
    assert_eq!(database.admitted_together(payer.project).await?.last(), Some(&10));
    drop((calls, ledger));
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_lane_that_admits_nothing_puts_its_calls_back_after_a_crash() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_day = 1000").await?;
    let call = open(ledger.admit(ask(payer, 10, 100)).await?);
    database.store(RoleName::Edge)?.ledger_link().forget_calls(&[call.request()]).await?;
    assert_eq!(database.tier_totals(payer.project).await?.open_rows, 0);
    database.lose_ledger_epoch().await?;
    until("the call to be back", async || Ok(database.tier_totals(payer.project).await?.day_tokens_held == 110))
        .await?;
    call.finish(Ending::Fault, 502, None);
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_call_that_cannot_be_written_loses_its_words_and_spoils_no_other() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_day = 100000").await?;
    // What JSON allows and PostgreSQL does not: half a character. And what the log refuses, whatever the reason.
    let unspeakable = r#"{"operation":"chat","model":"\ud83c"}"#;
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'invalid_parameter_value'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON request_logs FOR EACH ROW WHEN (new.error_code = 'unspeakable')
                 EXECUTE FUNCTION refuse()",
        )
        .await?;
    // On the one thread of a test all of them have asked before their lane looks.
    let admitting: Vec<_> = (0..7)
        .map(|number| {
            let details = if number == 4 { unspeakable } else { r#"{"operation":"chat","model":"m"}"# };
            let ask = Ask { details: details.to_owned(), ..ask(payer, 10, 100) };
            let ledger = ledger.clone();
            tokio::spawn(async move { ledger.admit(ask).await })
        })
        .collect();
    let mut calls = Vec::new();
    for call in admitting {
        calls.push(open(call.await??));
    }
    assert!(database.admitted_together(payer.project).await?.len() < calls.len());
    // All are settled at once, and another one of them is refused.
    let codes = [None, None, Some("unspeakable"), None, None, None, None];
    for (call, code) in calls.into_iter().zip(codes) {
        let mut call = call;
        call.sent();
        call.usage(Usage { prompt: 4, completion: 2, ..Usage::default() });
        call.finish(Ending::Complete, 200, code);
    }
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    let logged = database.logged_calls(payer.project).await?;
    let said: Vec<_> = logged.iter().map(|call| (call.operation.as_str(), call.model.as_deref())).collect();
    let count = |words| said.iter().filter(|said| **said == words).count();
    assert_eq!((count(("chat", Some("m"))), count(("unknown", None))), (5, 2), "{said:?}");
    assert!(logged.iter().all(|call| (call.status, call.charged_tokens) == (200, 6)), "{logged:?}");
    Ok(())
}

/// A ledger whose answers can be lost on their way.
async fn start_behind_a_proxy() -> anyhow::Result<(TestDatabase, DatabaseProxy, Payer, Ledger, LedgerTasks)> {
    let database = testkit::database().await?;
    let project = database.insert_project("p", "").await?;
    let (key, _) = database.insert_project_key(project).await?;
    let proxy = DatabaseProxy::to(&database).await?;
    let mut config = database.config(RoleName::Edge);
    config.url = proxy.url(&database, RoleName::Edge)?.into();
    let store = Store::new(&config, "test")?;
    let (ledger, tasks) = Ledger::start(&store, &testkit::standing(&store).await?, Duration::from_secs(60));
    Ok((database, proxy, Payer { project, key }, ledger, tasks))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_did_not_wait_is_settled_once_however_often_the_answer_to_its_admission_is_lost()
-> anyhow::Result<()> {
    let (database, proxy, payer, ledger, tasks) = start_behind_a_proxy().await?;
    proxy.lose_answers("admit_v2", 3);
    for number in 1..=12 {
        let mut call = open(ledger.admit_unlimited(ask(payer, 10, 100)).await?);
        call.sent();
        call.usage(Usage { prompt: 4, completion: 2, ..Usage::default() });
        call.finish(Ending::Complete, 200, None);
        testkit::until("it is settled", || async { Ok(database.tier_totals(payer.project).await?.log_rows == number) })
            .await?;
    }
    assert!(proxy.lost_answers("admit_v2") >= 3);
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert!(database.ledger_faults().await?.is_empty());
    let totals = database.tier_totals(payer.project).await?;
    assert_eq!((totals.log_rows, totals.logged_requests, totals.day_tokens), (12, 12, 72));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn settlements_whose_answers_are_lost_charge_once() -> anyhow::Result<()> {
    let (database, proxy, payer, ledger, tasks) = start_behind_a_proxy().await?;
    proxy.lose_answers("settle_v2", 4);
    proxy.lose_answers("flush_v1", 4);
    for number in 1..=12 {
        let mut call = open(ledger.admit(ask(payer, 10, 100)).await?);
        call.sent();
        call.usage(Usage { prompt: 4, completion: 200, ..Usage::default() });
        call.finish(Ending::Complete, 200, None);
        testkit::until("it is settled", || async { Ok(database.tier_totals(payer.project).await?.log_rows == number) })
            .await?;
    }
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert!(proxy.lost_answers("settle_v2") >= 4);
    assert!(database.ledger_faults().await?.is_empty());
    let totals = database.tier_totals(payer.project).await?;
    assert_eq!((totals.log_rows, totals.day_tokens, totals.open_calls), (12, 12 * 204, 0));
    Ok(())
}
