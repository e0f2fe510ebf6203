//! An edge that is killed under load.

use testkit::{Role, Stack};

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
