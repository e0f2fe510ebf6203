//! 64 callers at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::{Cap, WatchedCall};
use tokio::task::JoinSet;

use super::bound::Bound;
use super::caller::{Outcome, Over};
use super::compare::compare;
use super::plan::{CALLERS, Plan};
use super::scene::Scene;
use super::tally::Tally;

/// Plays a round and judges it.
pub(super) async fn play(scene: &mut Scene, round: usize, plan: &Plan, tally: &mut Tally) -> anyhow::Result<()> {
    scene.script(plan, plan.held_back);
    let place = scene.watch.last_place().await?;
    let bounds = scene.limit(plan, &plan.limits).await?;
    let over = call_all(scene, plan).await?;
    if plan.kill.is_some() {
        tally.kills += 1;
    }
    scene.rest(&answered(&over)).await?;
    scene.check(plan.kill.is_some() || round % 10 == 9).await?;
    compare(scene, plan, &bounds, &over, tally).await?;
    let admitted = scene.watch.admitted_after(place).await?;
    judge(scene, plan, &bounds, &over, &admitted, tally).await?;
    tally.rounds += 1;
    Ok(())
}

/// Those whose client knows that they were admitted.
pub(super) fn answered(over: &[Over]) -> Vec<i64> {
    let is_answered =
        |outcome: &Outcome| matches!(outcome, Outcome::Served(_) | Outcome::CutShort | Outcome::Left { began: true });
    over.iter().filter(|over| is_answered(&over.outcome)).map(|over| over.number).collect()
}

async fn call_all(scene: &mut Scene, plan: &Plan) -> anyhow::Result<Vec<Over>> {
    let mut running = JoinSet::new();
    let finished = Arc::new(AtomicU64::new(0));
    for caller in &plan.callers {
        let call = scene.call(*caller)?;
        let (http, finished) = (scene.stack.http.clone(), Arc::clone(&finished));
        running.spawn(async move {
            let over = call.make(&http).await;
            finished.fetch_add(1, Ordering::Relaxed);
            over
        });
    }
    if plan.held_back {
        testkit::until("every call is admitted or denied", || async {
            let held = scene.stack.upstream.counters().held;
            Ok(held + finished.load(Ordering::Relaxed) == CALLERS as u64)
        })
        .await?;
        scene.stack.upstream.release(None);
    }
    if let Some(kill) = plan.kill {
        testkit::until("it is time to kill an edge", || async {
            let is_over = finished.load(Ordering::Relaxed) == CALLERS as u64;
            Ok(is_over || scene.stack.upstream.counters().requests >= kill.after)
        })
        .await?;
        scene.kill(kill.edge).await?;
        scene.replace(kill.edge).await?;
    }
    let mut over = Vec::with_capacity(CALLERS);
    while let Some(done) = running.join_next().await {
        over.push(done?);
    }
    Ok(over)
}

/// Fails if a call was denied by a cap that had room for it. The calls are all that were admitted since the caps were set.
async fn judge(
    scene: &Scene,
    plan: &Plan,
    bounds: &[Bound],
    over: &[Over],
    admitted: &[WatchedCall],
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let meters = scene.meters(bounds).await?;
    let mut is_exact = plan.held_back;
    for Over { number, caller, outcome } in over {
        let Outcome::Denied(denial) = outcome else { continue };
        let amount = scene.hold(*caller);
        let mut had_room = true;
        for (bound, meter) in bounds.iter().zip(&meters) {
            if !caller.party.counts_for(bound.who) || !bound.justifies(denial, amount) {
                continue;
            }
            had_room &= bound.had_room(amount, admitted);
            // Held-back calls are all in flight at the end: who was denied has no room beside them. That is, unless the
            // window is another one, or what a killed edge has left behind was given up in between.
            let stands = bound.at_first.window_us == meter.window_us
                && (bound.cap != Cap::ConcurrentRequests || bound.at_first.held == 0);
            if plan.held_back && stands {
                had_room &= bound.has_room_beside(amount, admitted);
            }
            is_exact &= stands;
        }
        anyhow::ensure!(!had_room, "call {number} of {caller:?} was denied with room for it: {denial:?} {bounds:?}");
    }
    tally.exact += u64::from(is_exact);
    Ok(())
}
