//! How long a store with one document waits beside a store with very many.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::json;
use store::Store;
use store::ingest::{Finish, IngestSettings};
use store::queue::{Claim, ClaimRequest, patience};
use testkit::{PrivateServer, RoleName, StoreId};
use tokio::time::sleep;

use super::{LEASE, SLOTS, Scene, WORKERS, request};
use crate::arguments::Queue;
use crate::figure::{Figure, Unit};
use crate::stats::Samples;

/// Documents that wait in the one store.
const WAITING: i32 = 50_000;
/// Stores that get one document each, at a time of its own.
const OTHERS: i32 = 50;
/// How long a document is worked on.
const JOB: Duration = Duration::from_millis(100);
/// Between two arrivals, on average: a quarter of what the workers get done.
const PAUSE: Duration = Duration::from_millis(100);

/// When each document arrived and how many seconds later it was claimed.
#[derive(Debug, Default)]
struct PickUps {
    arrived: RefCell<HashMap<StoreId, Instant>>,
    waits: RefCell<Vec<f64>>,
}

/// The 95th percentile of the waits, as a share of one job.
pub(super) async fn measure(server: &PrivateServer, queue: &Queue) -> anyhow::Result<Figure> {
    let ground = Queue { finished: 0, stores: OTHERS + 1, ..queue.clone() };
    let scene = Scene::furnish(server.database().await?, &ground).await?;
    let Some((big, others)) = scene.stores.split_last() else { anyhow::bail!("there are no stores") };
    scene.database.copy_document(scene.first, &[*big], WAITING, "pending").await?;
    scene.database.vacuum_documents().await?;
    let pick_ups = PickUps::default();
    let workers = futures::future::try_join_all((0..WORKERS).map(|number| work(&scene, number, &pick_ups)));
    tokio::try_join!(arrive(&scene, others, &pick_ups), workers)?;
    let waits = Samples::new(pick_ups.waits.into_inner());
    let jobs = |share: f64| waits.percentile(share) / JOB.as_secs_f64();
    Ok(Figure::new(format!("pick-up p95 of {OTHERS} documents beside {WAITING}, in jobs"), Unit::Times, jobs(0.95))
        .at_most(2.0)
        .with("p50", Unit::Times, jobs(0.5))
        .with("largest", Unit::Times, waits.largest() / JOB.as_secs_f64()))
}

async fn arrive(scene: &Scene, others: &[StoreId], pick_ups: &PickUps) -> anyhow::Result<()> {
    for store in others {
        sleep(PAUSE.mul_f64(2.0 * rand::random::<f64>())).await;
        pick_ups.arrived.borrow_mut().insert(*store, Instant::now());
        scene.database.copy_document(scene.first, &[*store], 1, "pending").await?;
    }
    Ok(())
}

/// A process that claims for each worker that is free, until all that arrive are claimed.
async fn work(scene: &Scene, number: usize, pick_ups: &PickUps) -> anyhow::Result<()> {
    let store = scene.database.store(RoleName::Backend)?;
    let owner = format!("bench/{number}/00000000");
    let others = usize::try_from(OTHERS)?;
    let mut cursor = StoreId(0);
    let mut running = FuturesUnordered::new();
    while pick_ups.waits.borrow().len() < others {
        let free = SLOTS - i64::try_from(running.len())?;
        let claimed = store.claim_documents(&ClaimRequest { slots: free, ..request(&owner, cursor) }).await?;
        cursor = claimed.next_cursor.unwrap_or(StoreId(0));
        for claim in claimed.documents {
            if let Some(arrived) = pick_ups.arrived.borrow_mut().remove(&claim.store) {
                pick_ups.waits.borrow_mut().push(arrived.elapsed().as_secs_f64());
            }
            running.push(job(&store, claim, &scene.settings));
        }
        if i64::try_from(running.len())? == SLOTS {
            running.next().await.transpose()?;
        }
    }
    drop(running);
    store.close().await;
    Ok(())
}

async fn job(store: &Store, claim: Claim, settings: &IngestSettings) -> anyhow::Result<()> {
    sleep(JOB).await;
    let finish = Finish { chunks: 0, revision: settings.revision, pages: None, title: None, extraction: json!({}) };
    anyhow::ensure!(store.finish_document(claim.key, &finish, patience(LEASE)).await?, "lost");
    Ok(())
}
