//! What a stream costs in time: until its first event, and event by event.

use std::time::Duration;

use crate::course::{Course, GOVERNED, NO_LIMITS};
use crate::figure::{Figure, Unit};
use crate::load::without_failures;
use crate::stats::{Samples, interleaved, median};
use crate::streams::{Listeners, Played};
use crate::traffic::{PACE_MS, paced};

/// Streams at once, with what they are called: one, whose first event is what a single user waits for, and so many that
/// their events meet on the way.
const AT_ONCE: [(usize, &str); 2] = [(1, "one stream"), (16, "16 streams")];
/// Short streams, since each has only one first event.
const EVENTS: usize = 10;

/// 99th percentile of each round, in microseconds.
#[derive(Clone, Debug, Default)]
struct Rounds {
    first: Vec<f64>,
    gap: Vec<f64>,
    delay: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, streams: &[Played]) {
        let p99 = |seconds: Vec<f64>| Samples::new(seconds).percentile(0.99) * 1e6;
        self.first.push(p99(streams.iter().map(|stream| stream.first).collect()));
        self.gap.push(p99(streams.iter().flat_map(Played::added_gaps).collect()));
        self.delay.push(p99(streams.iter().flat_map(|stream| stream.delays.iter().copied()).collect()));
    }
}

pub(super) async fn run(course: &Course) -> anyhow::Result<Vec<Figure>> {
    course.upstream.answer(paced(EVENTS)).await?;
    let mut figures = Vec::new();
    for (streams, called) in AT_ONCE {
        figures.extend(at_once(course, streams, called).await?);
    }
    Ok(figures)
}

async fn at_once(course: &Course, streams: usize, called: &str) -> anyhow::Result<Vec<Figure>> {
    let listeners = course.legs.iter().map(|leg| Listeners::new(leg, streams, EVENTS, course.keeps_bytes));
    let mut listeners: Vec<Listeners> = listeners.collect();
    let mut rounds = vec![Rounds::default(); listeners.len()];
    let spread = Duration::from_millis(PACE_MS);
    for leg in &mut listeners {
        // Connections are made, and whatever is made at a first call.
        leg.window(Duration::ZERO, spread).await;
    }
    for order in interleaved(listeners.len(), course.scale.rounds, &mut rand::rng()) {
        for leg in order {
            let (Some(listeners), Some(rounds)) = (listeners.get_mut(leg), rounds.get_mut(leg)) else { continue };
            let (name, length) = (listeners.name(), course.scale.stream_window);
            rounds.add(&without_failures(name, async || listeners.window(length, spread).await).await?);
        }
    }
    let Some((direct, through)) = rounds.split_first() else { return Ok(Vec::new()) };
    let mut figures = Vec::new();
    for (listeners, leg) in listeners.iter().skip(1).zip(through) {
        let name = listeners.name();
        let figure = |what: &str, with: &[f64], without: &[f64]| {
            let added: Vec<f64> = with.iter().zip(without).map(|(with, without)| with - without).collect();
            Figure::new(format!("added {what} p99, {name}, {called}"), Unit::Micros, median(&added))
                .with("direct", Unit::Micros, median(without))
                .with("through", Unit::Micros, median(with))
        };
        let first = figure("time to first token", &leg.first, &direct.first);
        let gap = figure("gap per event", &leg.gap, &direct.gap);
        let delay = figure("delay of an event", &leg.delay, &direct.delay);
        figures.extend(match name {
            NO_LIMITS | GOVERNED => [first.at_most(600.0), gap.at_most(50.0), delay],
            _ => [first, gap, delay],
        });
    }
    Ok(figures)
}
