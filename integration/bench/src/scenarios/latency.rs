//! What a call costs one client in time, beside the same call sent to the upstream directly.

use crate::course::{Course, GOVERNED, NO_LIMITS};
use crate::figure::{Figure, Unit};
use crate::stats::{interleaved, median};
use crate::traffic::instant;

/// Median and 99th percentile of each round, in microseconds.
#[derive(Clone, Debug, Default)]
struct Rounds {
    p50: Vec<f64>,
    p99: Vec<f64>,
    foreign: Vec<f64>,
}

pub(super) async fn run(course: &Course) -> anyhow::Result<Vec<Figure>> {
    course.upstream.answer(instant()).await?;
    let mut clients = course.clients(1);
    let mut rounds = vec![Rounds::default(); clients.len()];
    for order in interleaved(clients.len(), course.scale.rounds, &mut rand::rng()) {
        for leg in order {
            let (Some(clients), Some(rounds)) = (clients.get_mut(leg), rounds.get_mut(leg)) else { continue };
            let (window, [before, after]) = clients.clean_window(course.scale.window, || course.spent()).await?;
            rounds.p50.push(window.seconds.percentile(0.50) * 1e6);
            rounds.p99.push(window.seconds.percentile(0.99) * 1e6);
            rounds.foreign.push(after.since(before).foreign(window.length));
        }
    }
    let Some((direct, through)) = rounds.split_first() else { return Ok(Vec::new()) };
    let mut figures = Vec::new();
    for (clients, leg) in clients.iter().skip(1).zip(through) {
        let name = clients.name();
        for (what, of, bars) in [
            ("p50", (|rounds: &Rounds| rounds.p50.clone()) as fn(&Rounds) -> Vec<f64>, (150.0, 350.0)),
            ("p99", |rounds| rounds.p99.clone(), (400.0, 1200.0)),
        ] {
            let (with, without) = (of(leg), of(direct));
            let added: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
            let figure = Figure::new(format!("added latency {what}, {name}"), Unit::Micros, median(&added))
                .with("direct", Unit::Micros, median(&without))
                .with("through", Unit::Micros, median(&with))
                .with("others on the machine", Unit::Share, median(&leg.foreign));
            figures.push(match name {
                NO_LIMITS => figure.at_most(bars.0),
                GOVERNED => figure.at_most(bars.1),
                _ => figure,
            });
        }
    }
    Ok(figures)
}
