//! What a transaction that somebody has left open does to admissions of a hot key.

use std::time::Duration;

use testkit::RoleName;

use super::pairs::{Pace, pump};
use crate::bed::Bed;
use crate::figure::{Figure, Unit};
use crate::stats::median;

/// One admission alone every millisecond: load that is constant and far from all the database can do.
const PACE: Pace = Pace { admitted: 1, every: Duration::from_millis(1) };

pub(super) async fn run(bed: &Bed) -> anyhow::Result<Vec<Figure>> {
    let store = bed.stack.database.store(RoleName::Edge)?;
    let scale = &bed.course.scale;
    let admissions = async |length| Ok::<_, anyhow::Error>(pump(&store, bed.hot, length, PACE).await?.waits);
    // Fills caches and plans.
    admissions(scale.window).await?;
    let before = admissions(scale.beside_window).await?;
    let transaction = bed.stack.database.leave_transaction_open().await?;
    let ageing = admissions(scale.open_transaction).await?;
    let beside = admissions(scale.beside_window).await?;
    transaction.release().await?;
    let after = admissions(scale.beside_window).await?;
    store.close().await;
    let p99 = |waits: &crate::stats::Samples| waits.percentile(0.99) * 1e6;
    let without = median(&[p99(&before), p99(&after)]);
    let name = format!("admission p99 beside a transaction open for {} s", scale.open_transaction.as_secs());
    Ok(vec![
        Figure::new(name, Unit::Times, p99(&beside) / without)
            .at_most(2.0)
            .with("before", Unit::Micros, p99(&before))
            .with("while it grew old", Unit::Micros, p99(&ageing))
            .with("beside", Unit::Micros, p99(&beside))
            .with("after", Unit::Micros, p99(&after))
            .with("beside p50", Unit::Micros, beside.percentile(0.5) * 1e6)
            .with("without p50", Unit::Micros, median(&[before.percentile(0.5), after.percentile(0.5)]) * 1e6)
            .with("admissions", Unit::PerSecond, beside.len() as f64 / scale.beside_window.as_secs_f64()),
    ])
}
