//! Settlements that have to wait, or are refused.

use ledger::{Ending, Usage};
use tokio::task::JoinSet;

use crate::{BUDGET, Payer, ask, open, start};

#[tokio::test]
async fn a_settlement_that_waits_for_its_admission_is_not_kept_waiting_by_others() -> anyhow::Result<()> {
    const TOGETHER: usize = 2000;
    const WANTED: usize = 30;
    let (database, payer, ledger, tasks) = start(&format!("concurrent_requests = {}", TOGETHER + WANTED)).await?;
    let free = database.insert_project("free", "").await?;
    let (key, _) = database.insert_project_key(free).await?;
    let free = Payer { project: free, key };
    let mut together = Vec::new();
    while together.len() < TOGETHER {
        let mut admitting = JoinSet::new();
        for _ in 0..200 {
            let ledger = ledger.clone();
            admitting.spawn(async move { ledger.admit(ask(payer, 10, 100)).await });
        }
        for outcome in admitting.join_all().await {
            together.push(open(outcome?));
        }
    }
    // With so few left, what these give back is wanted at once.
    let mut wanted = Vec::new();
    for _ in 0..WANTED {
        wanted.push(open(ledger.admit(ask(payer, 10, 100)).await?));
    }
    // On the one thread of a test, none of this is seen before all of it is there: the first is not yet decided, and
    // whatever else is taken off the inbox at once has something urgent in it.
    open(ledger.admit_unlimited(ask(free, 10, 100)).await?).finish(Ending::Complete, 200, None);
    for urgent in wanted {
        urgent.finish(Ending::Complete, 200, None);
        for call in together.drain(..together.len().min(TOGETHER / (WANTED - 5))) {
            call.finish(Ending::Complete, 200, None);
        }
    }
    assert!(together.is_empty());
    drop(ledger);
    let settled_after = testkit::eventually("all are settled", || async {
        let is_settled = database.tier_totals(free.project).await?.log_rows == 1
            && database.tier_totals(payer.project).await?.open_rows == 0;
        Ok(if is_settled { Some(database.settled_after(payer.project, free.project).await?) } else { None })
    })
    .await?;
    assert!(settled_after > 0, "it was settled last");
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_settlement_whose_figures_are_refused_is_charged_by_what_the_call_held() -> anyhow::Result<()> {
    let (database, payer, ledger, tasks) = start("tokens_per_day = 100000").await?;
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'numeric_value_out_of_range'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON request_logs FOR EACH ROW WHEN (new.prompt_tokens = 4)
                 EXECUTE FUNCTION refuse()",
        )
        .await?;
    for prompt in [4, 5] {
        let mut call = open(ledger.admit(ask(payer, 10, 100)).await?);
        call.sent();
        call.usage(Usage { prompt, completion: 2, ..Usage::default() });
        call.finish(Ending::Complete, 200, None);
    }
    drop(ledger);
    assert!(tasks.finish(BUDGET).await);
    assert_eq!(database.ledger_faults().await?, Vec::<String>::new());
    let logged = database.logged_calls(payer.project).await?;
    let mut charged: Vec<_> =
        logged.iter().map(|call| (call.charged_tokens, call.state.as_str(), call.status)).collect();
    charged.sort_unstable();
    assert_eq!(charged, [(7, "final", 200), (110, "estimated", 200)]);
    Ok(())
}
