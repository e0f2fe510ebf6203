//! Connections that break after the database has done its work and before its answer is there.

use testkit::{DatabaseProxy, Role, RoleName, Stack};

use crate::load::{self, Load, Payers};

/// Lost answers to admissions in CI, and in a long run.
const FEW: u64 = 100;
const MANY: u64 = 1000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_after_the_commit_leave_nothing_held_and_charge_nothing_twice() -> anyhow::Result<()> {
    let times = if crate::is_long_run() { MANY } else { FEW };
    let mut stack = Stack::builder().admins(0).remembering(200_000).start().await?;
    let proxy = DatabaseProxy::to(&stack.database).await?;
    let url = proxy.url(&stack.database, RoleName::Edge)?;
    for _ in 0..2 {
        let edge = stack.spawn_with(Role::Edge, &[("DATABASE_URL", &url)]).await?;
        let http = stack.http.clone();
        stack.process(edge)?.ready(&http).await?;
    }
    let payers = Payers::furnish(&stack).await?;
    let load = Load::start(&stack, &payers, 2, 24, 0)?;
    load.more(50).await?;
    let mut lost = 0;
    while lost < times {
        // In portions, so that waiting for each has a deadline.
        lost += FEW;
        proxy.lose_answers("admit_v2", FEW);
        proxy.lose_answers("settle_v2", FEW / 4);
        proxy.lose_answers("flush_v1", FEW / 4);
        testkit::until("answers are lost", || async { Ok(proxy.lost_answers("admit_v2") >= lost) }).await?;
    }
    proxy.heal();
    let lost = ["admit_v2", "settle_v2", "flush_v1"].map(|function| proxy.lost_answers(function));
    let back = load.more(24 + 1).await?;
    let calls = load.stop().await;
    println!("lost replies: {lost:?}, served again after {} ms", back.as_millis());
    // Within the minute that the bar gives.
    let rest = load::at_rest(&stack).await?;
    println!("lost replies: nothing held after {} ms", rest.as_millis());
    let refused = load::told_to_come_back(&calls);
    let rows = load::accounts(&stack, &payers, &calls, 0..0).await?;
    println!("lost replies: {} calls, {refused} told to come back, {} rows", calls.len(), rows.len());
    assert!(lost[1] > 0 && lost[2] > 0, "{lost:?}");
    assert!(rows.values().all(|row| row.status == 200 || row.error_code.as_deref() == Some("abandoned")));
    stack.shut_down().await
}
