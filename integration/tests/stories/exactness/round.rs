//! 64 callers at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use super::bound::Bound;
use super::caller::{Denial, Outcome};
use super::plan::{CALLERS, Plan};
use super::scene::Scene;
use super::tally::Tally;

/// A call that is over, by its number.
pub(super) type Over = (i64, Outcome);

/// Plays a round and judges it.
pub(super) async fn play(scene: &mut Scene, round: usize, plan: &Plan, tally: &mut Tally) -> anyhow::Result<()> {
    scene.script(plan, plan.held_back);
    let bounds = scene.limit(plan, &plan.limits).await?;
    let over = call_all(scene, plan).await?;
    if plan.kill.is_some() {
        tally.kills += 1;
    }
    scene.rest(&answered(&over)).await?;
    scene.check(plan.kill.is_some() || round % 10 == 9).await?;
    judge(scene, plan, &bounds, &over, tally).await?;
    tally.rounds += 1;
    Ok(())
}

/// Those whose client knows that they were admitted.
pub(super) fn answered(over: &[Over]) -> Vec<i64> {
    let is_answered =
        |outcome: &Outcome| matches!(outcome, Outcome::Served(_) | Outcome::CutShort | Outcome::Left { began: true });
    over.iter().filter(|(_, outcome)| is_answered(outcome)).map(|(number, _)| *number).collect()
}

async fn call_all(scene: &mut Scene, plan: &Plan) -> anyhow::Result<Vec<Over>> {
    let mut running = JoinSet::new();
    let finished = Arc::new(AtomicU64::new(0));
    for caller in &plan.callers {
        let call = scene.call(*caller, plan.output)?;
        let (number, http, finished) = (call.number, scene.stack.http.clone(), Arc::clone(&finished));
        running.spawn(async move {
            let outcome = call.make(&http).await;
            finished.fetch_add(1, Ordering::Relaxed);
            (number, outcome)
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

async fn judge(scene: &Scene, plan: &Plan, bounds: &[Bound], over: &[Over], tally: &mut Tally) -> anyhow::Result<()> {
    let admitted = compare(scene, plan, bounds, over, tally).await?;
    let meters = scene.meters(bounds).await?;
    let windows_stand = bounds.iter().zip(&meters).all(|(bound, meter)| bound.at_first.window_us == meter.window_us);
    let is_denied = over.iter().any(|(_, outcome)| matches!(outcome, Outcome::Denied(_)));
    let certain = bounds.iter().map(Bound::certain).min().unwrap_or(i64::MAX);
    anyhow::ensure!(!is_denied || admitted >= certain, "{admitted} were admitted, with room for {certain}: {bounds:?}");
    // What killed edges have left behind may have gone meanwhile, and made room for calls in flight.
    let is_of_slots = |bound: &Bound| bound.cap == testkit::Cap::ConcurrentRequests;
    let slots_stand = bounds.iter().all(|bound| !is_of_slots(bound) || bound.at_first.held == 0);
    if plan.held_back && windows_stand && slots_stand {
        let exactly = bounds.iter().map(Bound::at_once).min().unwrap_or(i64::MAX).min(CALLERS as i64);
        anyhow::ensure!(
            admitted == exactly,
            "{admitted} were admitted, with room for {exactly}: {bounds:?} {meters:?}"
        );
        tally.exact += 1;
    }
    Ok(())
}

/// Compares what clients were told, what the provider saw and what the ledger has. Returns how many were admitted.
pub(super) async fn compare(
    scene: &Scene,
    plan: &Plan,
    bounds: &[Bound],
    over: &[Over],
    tally: &mut Tally,
) -> anyhow::Result<i64> {
    let numbers: Vec<i64> = over.iter().map(|(number, _)| *number).collect();
    let calls = scene.watch.calls(&numbers).await?;
    let seen = scene.seen()?;
    let once: BTreeSet<i64> = seen.iter().copied().collect();
    anyhow::ensure!(once.len() == seen.len(), "the provider saw a call twice: {seen:?}");
    let (tokens, cost) = scene.hold(plan.output);
    for number in &once {
        anyhow::ensure!(calls.iter().any(|call| call.number == *number), "call {number} was sent without admission");
    }
    for (number, outcome) in over {
        let of_it: Vec<_> = calls.iter().filter(|call| call.number == *number).collect();
        let told = || format!("call {number} was {outcome:?}, and the ledger has {of_it:?}");
        anyhow::ensure!(of_it.len() <= 1, "admitted twice: {}", told());
        let call = of_it.first();
        tally.calls += 1;
        match outcome {
            Outcome::Denied(denial) => {
                anyhow::ensure!(call.is_none(), "denied and admitted: {}", told());
                right(bounds, denial)?;
                *tally.denied.entry(denial.code.clone()).or_default() += 1;
            }
            Outcome::Served(_) | Outcome::CutShort | Outcome::Left { began: true } => {
                anyhow::ensure!(call.is_some() && once.contains(number), "answered out of nothing: {}", told());
            }
            Outcome::Broken(_) => {
                anyhow::ensure!(plan.kill.is_some(), "a connection broke by itself: {}", told());
                tally.broken += 1;
            }
            Outcome::Left { began: false } => {}
            Outcome::Failed(_) => anyhow::bail!("a call failed: {}", told()),
        }
        tally.left += u64::from(matches!(outcome, Outcome::Left { .. }));
        tally.cut += u64::from(*outcome == Outcome::CutShort);
        let Some(call) = call else { continue };
        anyhow::ensure!((call.held_tokens, call.held_cost) == (tokens, cost), "another hold: {}", told());
        let (Some(status), Some(requests), Some(charged), Some(charged_cost)) =
            (call.status, call.charged_requests, call.charged_tokens, call.charged_cost)
        else {
            anyhow::ensure!(scene.is_killed(call.instance), "not logged: {}", told());
            tally.pending.insert(*number);
            continue;
        };
        if call.error_code.as_deref() == Some("edge_lost") {
            anyhow::ensure!(scene.is_killed(call.instance), "given up by mistake: {}", told());
            tally.lost += 1;
            continue;
        }
        anyhow::ensure!(requests == 1 || !once.contains(number), "not counted: {}", told());
        anyhow::ensure!(plan.exceeds || (charged <= tokens && charged_cost <= cost), "charged too much: {}", told());
        match outcome {
            Outcome::Served(reported) => {
                let is_right = reported.is_none_or(|reported| reported == charged);
                let is_plain =
                    (status, call.error_code.as_deref(), call.state.as_deref()) == (200, None, Some("final"));
                anyhow::ensure!(is_right && is_plain, "served otherwise: {}", told());
            }
            Outcome::CutShort => anyhow::ensure!(status >= 500, "not logged as cut: {}", told()),
            _ => anyhow::ensure!([200, 499, 502].contains(&status), "logged otherwise: {}", told()),
        }
    }
    tally.admitted += calls.len() as u64;
    tally.seen += seen.len() as u64;
    Ok(i64::try_from(calls.len())?)
}

/// Fails unless a cap justifies the denial.
fn right(bounds: &[Bound], denial: &Denial) -> anyhow::Result<()> {
    anyhow::ensure!(bounds.iter().any(|bound| bound.justifies(denial)), "denied without reason: {denial:?} {bounds:?}");
    Ok(())
}
