//! Call by call over the edge of the budget.

use super::bound::Bound;
use super::caller::Outcome;
use super::plan::{Caller, Plan};
use super::round::{answered, compare};
use super::scene::Scene;
use super::tally::Tally;

/// Leaves little room and makes calls one after the other: each is admitted exactly while there is room for it.
pub(super) async fn walk(scene: &mut Scene, round: usize, plan: &Plan, tally: &mut Tally) -> anyhow::Result<()> {
    let bounds = scene.limit(plan, &plan.step_limits).await?;
    for (number, caller) in plan.steps.iter().enumerate() {
        let is_denied = step(scene, plan, &bounds, *caller, tally)
            .await
            .map_err(|error| error.context(format!("step {number} after round {round}: {bounds:?}")))?;
        // Beyond the edge nothing changes, and without one there is none.
        if is_denied || (bounds.is_empty() && number == 1) {
            break;
        }
    }
    scene.check(false).await
}

async fn step(
    scene: &mut Scene,
    plan: &Plan,
    bounds: &[Bound],
    caller: Caller,
    tally: &mut Tally,
) -> anyhow::Result<bool> {
    scene.script(plan, false);
    let left = scene.watch.open_calls(&[]).await?;
    let place = scene.watch.last_place().await?;
    let before = scene.meters(bounds).await?;
    let has_room = bounds.iter().zip(&before).all(|(bound, meter)| bound.room(*meter) >= bound.each);

    let call = scene.call(caller, plan.output)?;
    let number = call.number;
    let over = [(number, call.make(&scene.stack.http).await)];
    scene.rest(&answered(&over)).await?;
    compare(scene, plan, bounds, &over, tally).await?;

    let after = scene.meters(bounds).await?;
    let others = scene.watch.admitted_after(place).await?.iter().any(|other| *other != Some(number));
    let windows_stand = before.iter().zip(&after).all(|(before, after)| before.window_us == after.window_us);
    let is_admitted = !matches!(over, [(_, Outcome::Denied(_))]);
    // A client that left in the round may be admitted late, killed edges' calls given up, and a minute may have ended.
    if others || !windows_stand || scene.watch.open_calls(&[]).await? != left {
        tally.disturbed += 1;
    } else {
        anyhow::ensure!(is_admitted == has_room, "{over:?} with {before:?} taken before and {after:?} after");
        tally.steps += 1;
    }
    Ok(!is_admitted)
}
