//! Many paced streams at once: none may stand still, and every byte of each must come, in order.

use std::time::Duration;

use crate::course::{Course, DIRECT, GOVERNED, NO_LIMITS};
use crate::figure::{Figure, Unit};
use crate::report::say;
use crate::stats::Samples;
use crate::streams::{Listeners, Played};
use crate::traffic::paced;

/// An event that comes later than this after the upstream has sent it is a stall.
const STALL: Duration = Duration::from_millis(250);
/// Within which time the streams begin.
const SPREAD: Duration = Duration::from_secs(1);

pub(super) async fn run(course: &Course) -> anyhow::Result<Vec<Figure>> {
    let (count, events) = (course.scale.many_streams, course.scale.many_events);
    let mut figures = Vec::new();
    for leg in &course.legs {
        course.upstream.answer(paced(events)).await?;
        let mut listeners = Listeners::new(leg, count, events, course.keeps_bytes);
        let before = course.spent();
        let begun = std::time::Instant::now();
        let (streams, failures) = listeners.window(Duration::ZERO, SPREAD).await;
        let spent = course.spent().since(before);
        let foreign = spent.foreign(begun.elapsed());
        failures.first().into_iter().for_each(|failure| say(&format!("{}: a stream failed: {failure}", leg.name)));
        let delays = Samples::new(streams.iter().flat_map(|stream| stream.delays.iter().copied()).collect());
        let stalls = streams.iter().flat_map(|stream| &stream.delays).filter(|delay| **delay > STALL.as_secs_f64());
        let is_broken = |stream: &&Played| stream.is_disordered || stream.is_different;
        let broken = streams.iter().filter(is_broken).count() + failures.len();
        let name = leg.name;
        let stalls = Figure::new(format!("{count} streams: stalls, {name}"), Unit::Count, stalls.count() as f64)
            .with("events", Unit::Count, delays.len() as f64)
            .with("delay p50", Unit::Micros, delays.percentile(0.5) * 1e6)
            .with("delay p99", Unit::Micros, delays.percentile(0.99) * 1e6)
            .with("delay longest", Unit::Micros, delays.largest() * 1e6)
            .with("server an event", Unit::Micros, spent.server.as_secs_f64() * 1e6 / delays.len().max(1) as f64)
            .with("others on the machine", Unit::Share, foreign);
        let what = format!("{count} streams: with missing or reordered bytes, {name}");
        let counters = course.upstream.counters().await?;
        let broken = Figure::new(what, Unit::Count, broken as f64)
            .with("failed", Unit::Count, failures.len() as f64)
            .with("upstream calls", Unit::Count, counters.requests as f64)
            .with("of these aborted", Unit::Count, counters.aborted as f64);
        figures.extend(match name {
            DIRECT | NO_LIMITS | GOVERNED => [stalls.at_most(0.0), broken.at_most(0.0)],
            _ => [stalls, broken],
        });
    }
    Ok(figures)
}
