//! What a busy server costs: CPU of a call, and how many calls it answers with and without limits.

use crate::course::{Course, DIRECT, GOVERNED, NO_LIMITS, Spent};
use crate::figure::{Figure, Unit};
use crate::load::Window;
use crate::stats::{interleaved, median};
use crate::traffic::instant;

/// Clients of the CPU figure.
const FEW: usize = 8;
/// Clients of the throughput figure: enough that nothing waits for the next call.
const MANY: usize = 64;

/// What the rounds of one leg had.
#[derive(Clone, Debug, Default)]
struct Rounds {
    name: &'static str,
    rate: Vec<f64>,
    p99: Vec<f64>,
    /// Microseconds of CPU a call.
    server: Vec<f64>,
    database: Vec<f64>,
    upstream: Vec<f64>,
    client: Vec<f64>,
    foreign: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, window: &Window, spent: Spent) {
        let a_call = |time: std::time::Duration| time.as_secs_f64() * 1e6 / window.seconds.len().max(1) as f64;
        self.rate.push(window.rate());
        self.p99.push(window.seconds.percentile(0.99) * 1e6);
        self.server.push(a_call(spent.server));
        self.database.push(a_call(spent.database));
        self.upstream.push(a_call(spent.upstream));
        self.client.push(a_call(spent.client));
        self.foreign.push(spent.foreign(window.length));
    }

    fn details(&self, figure: Figure) -> Figure {
        figure
            .with("calls", Unit::PerSecond, median(&self.rate))
            .with("latency p99", Unit::Micros, median(&self.p99))
            .with("database", Unit::Micros, median(&self.database))
            .with("upstream", Unit::Micros, median(&self.upstream))
            .with("client", Unit::Micros, median(&self.client))
            .with("others on the machine", Unit::Share, median(&self.foreign))
    }
}

/// The CPU that the server spends on a call.
pub(super) async fn cpu(course: &Course) -> anyhow::Result<Vec<Figure>> {
    let rounds = rounds(course, FEW).await?;
    // How fast the processors were in this run: what client and upstream spend on a call with nothing in between.
    let direct = rounds.iter().find(|rounds| rounds.name == DIRECT);
    let yardstick = direct.map_or(0.0, |direct| median(&direct.upstream) + median(&direct.client));
    let through = rounds.iter().filter(|rounds| rounds.name != DIRECT && course.server.is_some());
    Ok(through
        .map(|rounds| {
            let name = format!("CPU of a call at {FEW} clients, {}", rounds.name);
            let figure = rounds.details(Figure::new(name, Unit::Micros, median(&rounds.server)));
            let figure = figure.with("a direct call, client and upstream", Unit::Micros, yardstick);
            match rounds.name {
                NO_LIMITS => figure.at_most(150.0),
                GOVERNED => figure.at_most(210.0),
                _ => figure,
            }
        })
        .collect())
}

/// How many calls are answered.
pub(super) async fn throughput(course: &Course) -> anyhow::Result<Vec<Figure>> {
    let rounds = rounds(course, MANY).await?;
    let mut figures: Vec<Figure> = rounds
        .iter()
        .map(|rounds| {
            let name = format!("calls at {MANY} clients, {}", rounds.name);
            let figure = Figure::new(name, Unit::PerSecond, median(&rounds.rate));
            rounds.details(figure.with("server", Unit::Micros, median(&rounds.server)))
        })
        .collect();
    let of = |name: &str| rounds.iter().find(|rounds| rounds.name == name);
    if let (Some(open), Some(governed)) = (of(NO_LIMITS), of(GOVERNED)) {
        let kept: Vec<f64> = governed.rate.iter().zip(&open.rate).map(|(governed, open)| governed / open).collect();
        figures.push(Figure::new("throughput kept when governed", Unit::Share, median(&kept)).at_least(0.70));
    }
    Ok(figures)
}

async fn rounds(course: &Course, count: usize) -> anyhow::Result<Vec<Rounds>> {
    course.upstream.answer(instant()).await?;
    let mut clients = course.clients(count);
    let mut rounds: Vec<Rounds> =
        clients.iter().map(|clients| Rounds { name: clients.name(), ..Rounds::default() }).collect();
    for order in interleaved(clients.len(), course.scale.rounds, &mut rand::rng()) {
        for leg in order {
            let (Some(clients), Some(rounds)) = (clients.get_mut(leg), rounds.get_mut(leg)) else { continue };
            let (window, [before, after]) = clients.clean_window(course.scale.window, || course.spent()).await?;
            rounds.add(&window, after.since(before));
        }
    }
    Ok(rounds)
}
