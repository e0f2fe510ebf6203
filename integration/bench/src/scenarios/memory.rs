//! What an edge of its own keeps in memory: idle, with a tokenizer, and after many streams.

use std::time::Duration;

use anyhow::Context as _;

use crate::bed::Bed;
use crate::course::NO_LIMITS;
use crate::figure::{Figure, Unit};
use crate::load::{Clients, without_failures};
use crate::machine::resident_bytes;
use crate::streams::Listeners;
use crate::traffic::{PACE_MS, instant, paced};

const EVENTS: usize = 25;
/// A process that has just become ready, or has just loaded something, settles in this time.
const SETTLE: Duration = Duration::from_secs(1);
const STOP_LIMIT: Duration = Duration::from_secs(90);

pub(super) async fn run(bed: &mut Bed) -> anyhow::Result<Vec<Figure>> {
    let (place, legs) = bed.another_edge().await?;
    let pid = bed.stack.process(place)?.pid().context("the edge has ended")?;
    let leg = legs.iter().find(|leg| leg.name == NO_LIMITS).context("no such leg")?;
    let scale = bed.course.scale.clone();
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);

    tokio::time::sleep(SETTLE.min(scale.memory_rest)).await;
    let idle = mib(resident_bytes(pid)?);

    bed.course.upstream.answer(instant()).await?;
    Clients::new(leg.chat(), 1).clean_window(Duration::from_millis(100), || ()).await?;
    tokio::time::sleep(SETTLE.min(scale.memory_rest)).await;
    let counting = mib(resident_bytes(pid)?);

    bed.course.upstream.answer(paced(EVENTS)).await?;
    let [all, at_once] = scale.memory_streams;
    let mut during = 0.0_f64;
    let mut listeners = Listeners::new(leg, at_once, EVENTS, true);
    for _ in 0..all.div_ceil(at_once) {
        let spread = Duration::from_millis(PACE_MS);
        without_failures("streams", async || listeners.window(Duration::ZERO, spread).await).await?;
        during = during.max(mib(resident_bytes(pid)?));
    }
    drop(listeners);
    tokio::time::sleep(scale.memory_rest).await;
    let after = mib(resident_bytes(pid)?);

    let edge = bed.stack.process(place)?;
    let status = edge.stop(STOP_LIMIT).await?;
    anyhow::ensure!(status.success(), "the edge ended with {status}:\n{}", edge.log_tail());
    Ok(vec![
        Figure::new("memory before the first counted call", Unit::MiB, idle).at_most(30.0),
        Figure::new("memory with one tokenizer family", Unit::MiB, counting).at_most(120.0),
        Figure::new(
            format!("memory {} s after {all} streams", scale.memory_rest.as_secs()),
            Unit::Times,
            after / counting,
        )
        .at_most(1.2)
        .with("before", Unit::MiB, counting)
        .with(&format!("with {at_once} open"), Unit::MiB, during)
        .with("after", Unit::MiB, after),
    ])
}
