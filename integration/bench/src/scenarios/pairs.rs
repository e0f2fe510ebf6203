//! How many calls a second can be admitted and settled through one hot key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use store::Store;
use store::ledger::{Admission, Ask, Entry, OpenCallRow, Settlement};
use testkit::{ApiKeyId, InstanceId, NanoUsd, Price, ProjectId, RequestId, RoleName};
use tokio::sync::mpsc;

use crate::bed::Bed;
use crate::course::Spent;
use crate::figure::{Figure, Unit};
use crate::stats::{Samples, median};

/// Calls that are admitted together, as a lane of the edge does it.
const ADMITTED: usize = 64;
/// Calls that are settled together, as the edge's writer does it.
const SETTLED: usize = 128;
/// Calls that are admitted and not settled yet.
const IN_FLIGHT: usize = 512;

/// As fast as it goes.
const FULL: Pace = Pace { admitted: ADMITTED, every: Duration::ZERO };

pub(super) async fn run(bed: &Bed) -> anyhow::Result<Vec<Figure>> {
    let store = bed.stack.database.store(RoleName::Edge)?;
    let (mut rates, mut admissions, mut database, mut foreign) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // The first round fills caches and plans.
    for round in 0..=bed.course.scale.rounds.min(5) {
        let before = bed.course.spent();
        let Pumped { count, took, waits } = pump(&store, bed.hot, bed.course.scale.pairs_window, FULL).await?;
        let spent: Spent = bed.course.spent().since(before);
        if round > 0 {
            rates.push(count as f64 / took.as_secs_f64());
            admissions.push(waits.percentile(0.5) * 1e6);
            database.push(spent.database.as_secs_f64() * 1e6 / count.max(1) as f64);
            foreign.push(spent.foreign(took));
        }
    }
    let mut figures = alone(&store, bed.hot, bed.course.scale.window).await?;
    store.close().await;
    figures.push(
        Figure::new("pairs through one hot key", Unit::PerSecond, median(&rates))
            .at_least(10_000.0)
            .with(&format!("admission of {ADMITTED} p50"), Unit::Micros, median(&admissions))
            .with("database a pair", Unit::Micros, median(&database))
            .with("others on the machine", Unit::Share, median(&foreign)),
    );
    Ok(figures)
}

/// What each statement takes when nothing else is under way, for batches of a few sizes.
async fn alone(store: &Store, hot: (ProjectId, ApiKeyId), length: Duration) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let (mut link, instance) = (store.ledger_link(), InstanceId::new());
    let epoch = link.reassert(instance, &[]).await?;
    for size in [1, 16, ADMITTED] {
        let (mut admitted, mut settled, mut flushed) = (Vec::new(), Vec::new(), Vec::new());
        let begun = Instant::now();
        while begun.elapsed() < length {
            let asks: Vec<Ask> = (0..size).map(|_| ask(hot)).collect();
            let asked = Instant::now();
            let answers = link.admit(instance, epoch, false, &asks.iter().collect::<Vec<_>>()).await?;
            admitted.push(asked.elapsed().as_secs_f64());
            let settlements = asks.into_iter().zip(answers).map(|(ask, answer)| Ok(settlement(row(ask, &answer)?)));
            let settlements: Vec<Settlement> = settlements.collect::<anyhow::Result<_>>()?;
            anyhow::ensure!(settlements.len() == size, "{} answers to {size} asks", settlements.len());
            let asked = Instant::now();
            link.settle(instance, &settlements).await?;
            settled.push(asked.elapsed().as_secs_f64());
            let asked = Instant::now();
            link.flush().await?;
            flushed.push(asked.elapsed().as_secs_f64());
        }
        let p50 = |seconds: Vec<f64>| Samples::new(seconds).percentile(0.5) * 1e6;
        figures.push(
            Figure::new(format!("admission of {size} alone, p50"), Unit::Micros, p50(admitted))
                .with(&format!("settlement of {size}"), Unit::Micros, p50(settled))
                .with("flush", Unit::Micros, p50(flushed)),
        );
    }
    link.close().await;
    Ok(figures)
}

/// How fast calls are admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// So many in one statement,
    pub(super) admitted: usize,
    /// one statement every so often, or as soon as the last is answered.
    pub(super) every: Duration,
}

/// What was admitted and settled.
#[derive(Clone, Debug)]
pub(super) struct Pumped {
    /// Pairs that are durable.
    pub(super) count: usize,
    /// How long they took, the last flush included.
    pub(super) took: Duration,
    /// Seconds of each statement that admitted.
    pub(super) waits: Samples,
}

/// Admits and settles side by side for as long as `length`.
pub(super) async fn pump(
    store: &Store,
    hot: (ProjectId, ApiKeyId),
    length: Duration,
    pace: Pace,
) -> anyhow::Result<Pumped> {
    let (sender, mut receiver) = mpsc::channel::<OpenCallRow>(IN_FLIGHT);
    let begun = Instant::now();
    let instance = InstanceId::new();
    let mut admitting = store.ledger_link();
    let epoch = admitting.reassert(instance, &[]).await?;
    let admit = async move {
        let mut waits = Vec::new();
        while begun.elapsed() < length {
            // Room for all of them first: nothing is admitted that could not be settled.
            let permits = sender.reserve_many(pace.admitted).await?;
            let asks: Vec<Ask> = (0..pace.admitted).map(|_| ask(hot)).collect();
            let asked = Instant::now();
            let answers = admitting.admit(instance, epoch, false, &asks.iter().collect::<Vec<_>>()).await?;
            waits.push(asked.elapsed().as_secs_f64());
            for ((permit, ask), answer) in permits.zip(asks).zip(answers) {
                permit.send(row(ask, &answer)?);
            }
            tokio::time::sleep_until((asked + pace.every).into()).await;
        }
        admitting.close().await;
        Ok::<_, anyhow::Error>(Samples::new(waits))
    };
    let mut settling = store.ledger_link();
    let settle = async {
        let (mut count, mut batch) = (0, Vec::new());
        while receiver.recv_many(&mut batch, SETTLED).await > 0 {
            let settlements: Vec<Settlement> = batch.drain(..).map(settlement).collect();
            let settled = settling.settle(instance, &settlements).await?.len();
            anyhow::ensure!(settled == settlements.len(), "{settled} of {} were settled", settlements.len());
            settling.flush().await?;
            count += settled;
        }
        settling.close().await;
        Ok::<_, anyhow::Error>(count)
    };
    let (waits, count) = tokio::try_join!(admit, settle)?;
    Ok(Pumped { count, took: begun.elapsed(), waits })
}

/// What an edge asks for a call of this benchmark.
fn ask((project, key): (ProjectId, ApiKeyId)) -> Ask {
    Ask {
        request: RequestId::new(),
        project,
        key: Some(key),
        prompt_tokens: 48,
        output_tokens: 256,
        min_output: 64,
        input_price: Price(150_000_000),
        output_price: Price(600_000_000),
        fixed_cost: NanoUsd::ZERO,
        details: r#"{"operation":"chat","route":"assistant","model":"gpt-4o-mini","provider_type":"custom_openai","connection_id":1,"streamed":false,"status":499}"#
            .to_owned(),
    }
}

/// The row of an ask that was admitted.
fn row(ask: Ask, answer: &Admission) -> anyhow::Result<OpenCallRow> {
    let Admission::Admitted { at, output_tokens, .. } = answer else { anyhow::bail!("not admitted: {answer:?}") };
    Ok(OpenCallRow::held(Arc::new(ask), Some(*at), *output_tokens))
}

/// What an edge hands in for it.
fn settlement(call: OpenCallRow) -> Settlement {
    let entry = Entry {
        model: Some("gpt-4o-mini".to_owned()),
        status: 200,
        prompt_tokens: Some(48),
        completion_tokens: Some(150),
        cost_source: Some("user".to_owned()),
        latency_ms: 1,
        first_byte_ms: Some(1),
        attempts: 1,
        ..Entry::default()
    };
    Settlement { call, counts: true, tokens: 198, cost: NanoUsd(97_200), entry }
}
