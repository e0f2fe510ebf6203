//! An edge that is killed under load.

use std::collections::BTreeSet;

use testkit::{Role, Stack, until};

use crate::load::{self, End, Load, Payers, Streams};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_an_edge_that_is_killed_under_load_is_in_the_log() -> anyhow::Result<()> {
    let stack = Stack::builder().admins(0).edges(2).set("LEDGER_ORPHAN_AFTER", "20s").remembering(50_000);
    let mut stack = stack.start().await?;
    let payers = Payers::furnish(&stack).await?.only_governed();
    let mut streams = Streams::open(&stack, &payers, 2, 0, 40).await?;
    let load = Load::start(&stack, &payers, 2, 16, 1000)?;
    load.more(100).await?;
    stack.nth_mut(Role::Edge, 1)?.kill().await?;
    streams.break_off(1, 20).await?;
    load.more(100).await?;
    streams.finish(&stack, streams.count()).await?;
    let calls = load.stop().await;
    let rest = load::at_rest(&stack).await?;
    println!("killed edge: nothing held after {} ms", rest.as_millis());

    let broken = calls.iter().filter(|call| call.end == End::Broken).count();
    assert_eq!(broken + calls.iter().filter(|call| call.end == End::Whole).count(), calls.len());
    let rows = load::accounts(&stack, &payers, &calls, 0..40).await?;
    let mut lost = 0;
    for row in rows.values().filter(|row| row.status != 200) {
        assert_eq!((row.status, row.error_code.as_deref()), (499, Some("edge_lost")), "{row:?}");
        assert_eq!((row.state.as_str(), row.charged_requests), ("estimated", 1), "{row:?}");
        lost += 1;
    }
    println!("killed edge: {} calls, {broken} broken, {} rows, {lost} given up", calls.len(), rows.len());
    assert!(lost >= 20, "its streams at least");
    assert!((0..40).all(|stream| rows.contains_key(&stream)));
    stack.shut_down().await
}

/// What an edge may take with it: calls without limits that had begun before it was known that their rows are not written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_that_is_killed_while_a_project_is_locked_loses_the_calls_from_before_that_was_known_and_no_others()
-> anyhow::Result<()> {
    let mut stack = Stack::builder().admins(0).edges(2).set("LEDGER_ORPHAN_AFTER", "20s").start().await?;
    let payers = Payers::furnish(&stack).await?;
    let [_, open] = payers.projects;
    let free = payers.key(1).to_owned();
    // Odd numbers are those of the project without limits.
    let mut numbers = (0..).map(|call: u64| 2 * call + 1);
    let mut served = BTreeSet::new();
    for number in numbers.by_ref().take(20) {
        assert_eq!(load::try_once(&stack, 1, &free, number).await?, End::Whole);
        served.insert(number);
    }
    until("their rows are written", async || Ok(load::numbers(&stack, open).await? == served)).await?;

    let lock = stack.database.lock_project(open).await?;
    let (mut begun, mut refused) = (BTreeSet::new(), 0);
    for number in numbers.by_ref().take(200) {
        match load::try_once(&stack, 1, &free, number).await? {
            End::Whole => {
                assert_eq!(refused, 0, "call {number} began although it was known that its row is not written");
                begun.insert(number);
            }
            end => {
                assert!(matches!(end, End::Refused(503, _, true)), "{end:?}");
                refused += 1;
            }
        }
    }
    assert!(!begun.is_empty() && refused > 0, "{begun:?}");
    stack.nth_mut(Role::Edge, 1)?.kill().await?;
    lock.release().await?;
    let number = numbers.next().unwrap_or_default();
    until("the other edge serves again", async || Ok(load::try_once(&stack, 0, &free, number).await? == End::Whole))
        .await?;
    served.insert(number);
    until("its row is written", async || Ok(load::numbers(&stack, open).await?.contains(&number))).await?;
    load::at_rest(&stack).await?;
    assert_eq!(load::numbers(&stack, open).await?, served);
    println!("killed edge: {} calls without rows, {refused} refused", begun.len());
    stack.shut_down().await
}
