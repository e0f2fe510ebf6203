//! Call by call over the edge of the budget.

use super::bound::Bound;
use super::caller::Outcome;
use super::compare::compare;
use super::plan::{Caller, Plan};
use super::round::answered;
use super::scene::Scene;
use super::tally::Tally;

/// Leaves little room and makes calls one after the other: each is admitted exactly while there is room for it.
pub(super) async fn walk(scene: &mut Scene, round: usize, plan: &Plan, tally: &mut Tally) -> anyhow::Result<()> {
    let bounds = scene.limit(plan, &plan.step_limits).await?;
    for (number, caller) in plan.steps.iter().enumerate() {
        step(scene, plan, &bounds, *caller, tally)
            .await
            .map_err(|error| error.context(format!("step {number} after round {round}: {bounds:?}")))?;
        // Without an edge there is nothing to walk over.
        if bounds.is_empty() && number == 1 {
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
) -> anyhow::Result<()> {
    let of_it: Vec<Bound> = bounds.iter().filter(|bound| caller.party.counts_for(bound.who)).copied().collect();
    scene.script(plan, false);
    let left = scene.watch.open_calls(&[]).await?;
    let place = scene.watch.last_place().await?;
    let before = scene.meters(&of_it).await?;
    let amount = scene.hold(caller);
    let has_room = of_it.iter().zip(&before).all(|(bound, meter)| bound.has_room(*meter, amount));

    let call = scene.call(caller)?;
    let number = call.number;
    let over = [call.make(&scene.stack.http).await];
    scene.rest(&answered(&over)).await?;
    compare(scene, plan, bounds, &over, tally).await?;

    let after = scene.meters(&of_it).await?;
    let others = scene.watch.admitted_after(place).await?.iter().any(|other| other.number != Some(number));
    let windows_stand = before.iter().zip(&after).all(|(before, after)| before.window_us == after.window_us);
    let is_admitted = !matches!(over[0].outcome, Outcome::Denied(_));
    // A client that left in the round may be admitted late, killed edges' calls given up, and a minute may have ended.
    if others || !windows_stand || scene.watch.open_calls(&[]).await? != left {
        tally.disturbed += 1;
    } else {
        let [over] = over;
        anyhow::ensure!(
            is_admitted == has_room,
            "{caller:?} {:?} with {before:?} taken before and {after:?} after",
            over.outcome
        );
        tally.steps += 1;
    }
    Ok(())
}
