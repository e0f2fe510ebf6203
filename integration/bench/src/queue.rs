//! The document queue alone: claims, writes and finishes as workers do them, among documents that are done.

mod fairness;

use std::time::{Duration, Instant};

use serde_json::json;
use store::Store;
use store::ingest::{Finish, IngestSettings, NewChunk, NewPosting, NewSegment};
use store::queue::{Claim, ClaimRequest, patience};
use testkit::work::{self, LEASE};
use testkit::{DocumentId, PrivateServer, RoleName, StoreId, TestDatabase};
use tokio::time::sleep_until;

use crate::arguments::Queue;
use crate::figure::{Figure, Unit};
use crate::machine;
use crate::report::{Report, say};
use crate::stats::Samples;

/// Processes, and documents that each works on at a time.
const WORKERS: usize = 2;
const SLOTS: i64 = 2;
const WIDTH: i32 = 384;
/// Looks at a queue in which nothing waits.
const POLLS: usize = 500;
/// Beside the open transaction each worker claims this often: 100 documents a second together.
const PACE: Duration = Duration::from_millis(40);

/// What to leave out of the life of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// A claim and a finish, with nothing in between.
    Empty,
    /// With one chunk, its vector and its postings.
    OneChunk,
}

/// Seconds of each statement.
#[derive(Debug, Default)]
struct Times {
    claims: Vec<f64>,
    writes: Vec<f64>,
    finishes: Vec<f64>,
}

/// Stores with their documents.
struct Scene {
    database: TestDatabase,
    stores: Vec<StoreId>,
    first: DocumentId,
    settings: IngestSettings,
}

pub(crate) async fn run(queue: &Queue) -> anyhow::Result<Report> {
    let server = PrivateServer::start_named("bench-queue").await?;
    let mut report = Report {
        about: json!({ "version": env!("CARGO_PKG_VERSION"), "debug": cfg!(debug_assertions), "machine": machine::describe() }),
        ..Report::default()
    };
    let scene = Scene::furnish(server.database().await?, queue).await?;
    say(&format!("{} documents are done", queue.finished));
    for (name, life) in [("claim and finish", Life::Empty), ("with one chunk", Life::OneChunk)] {
        // The first documents fill caches and plans.
        scene.drain(queue.documents / 10, life).await?;
        let (times, took) = scene.drain(queue.documents, life).await?;
        let figure = Figure::new(name, Unit::PerSecond, times.finishes.len() as f64 / took.as_secs_f64());
        let bar = if life == Life::Empty { figure.at_least(300.0) } else { figure };
        report.figures.push(times.details(bar));
        if life == Life::Empty {
            report.figures.push(claim_figure("claim p99", times.claims, 5_000.0));
        }
    }
    report.figures.push(claim_figure("claim p99 where nothing waits", scene.poll().await?, 5_000.0));
    let name = format!("claim p99 beside a transaction open for {} s", queue.open_transaction);
    let claims = scene.beside(Duration::from_secs(queue.open_transaction), queue.documents).await?;
    report.figures.push(claim_figure(&name, claims, 25_000.0));
    drop(scene);
    report.figures.push(fairness::measure(&server, queue).await?);
    server.stop().await?;
    Ok(report)
}

fn claim_figure(name: &str, claims: Vec<f64>, bar_us: f64) -> Figure {
    let claims = Samples::new(claims);
    Figure::new(name, Unit::Micros, claims.percentile(0.99) * 1e6)
        .at_most(bar_us)
        .with("p50", Unit::Micros, claims.percentile(0.5) * 1e6)
        .with("largest", Unit::Micros, claims.largest() * 1e6)
        .with("claims", Unit::Count, claims.len() as f64)
}

impl Times {
    fn details(&self, figure: Figure) -> Figure {
        let p50 = |seconds: &[f64]| Samples::new(seconds.to_vec()).percentile(0.5) * 1e6;
        figure
            .with("claim p50", Unit::Micros, p50(&self.claims))
            .with("write p50", Unit::Micros, p50(&self.writes))
            .with("finish p50", Unit::Micros, p50(&self.finishes))
    }

    fn add(&mut self, other: Self) {
        self.claims.extend(other.claims);
        self.writes.extend(other.writes);
        self.finishes.extend(other.finishes);
    }
}

impl Scene {
    async fn furnish(database: TestDatabase, queue: &Queue) -> anyhow::Result<Self> {
        let project = database.insert_project("p", "").await?;
        let connection = database.insert_connection("embed", "http://127.0.0.1:9/v1", "demo-embed").await?;
        let store = database.insert_document_store(project, connection, WIDTH).await?;
        let mut stores = database.insert_sibling_stores(store, queue.stores - 1).await?;
        stores.push(store);
        let first = database.insert_document(store, "a.txt").await?;
        let each = queue.finished.div_euclid(queue.stores);
        database.copy_document(first, &stores, each, "ready").await?;
        database.vacuum_documents().await?;
        let backend = database.store(RoleName::Backend)?;
        let settings = backend.find_ingest_settings(first).await?;
        let settings = settings.ok_or_else(|| anyhow::anyhow!("the store has no settings"))?;
        backend.close().await;
        Ok(Self { database, stores, first, settings })
    }

    /// Workers side by side, until as many documents as that are done.
    async fn drain(&self, documents: i32, life: Life) -> anyhow::Result<(Times, Duration)> {
        let each = documents.div_euclid(i32::try_from(self.stores.len())?).max(1);
        self.database.copy_document(self.first, &self.stores, each, "pending").await?;
        let begun = Instant::now();
        let times = self.work(life, Duration::ZERO, None).await?;
        Ok((times, begun.elapsed()))
    }

    /// Looks when there is nothing.
    async fn poll(&self) -> anyhow::Result<Vec<f64>> {
        let store = self.database.store(RoleName::Backend)?;
        let mut times = Vec::new();
        for _ in 0..POLLS {
            let begun = Instant::now();
            let claimed = store.claim_documents(&request("bench", StoreId(0))).await?;
            times.push(begun.elapsed().as_secs_f64());
            anyhow::ensure!(claimed.documents.is_empty(), "something waits");
        }
        store.close().await;
        Ok(times)
    }

    /// Claims of a busy queue beside a transaction, of the last tenth of the time that it is open.
    async fn beside(&self, open_for: Duration, documents: i32) -> anyhow::Result<Vec<f64>> {
        let transaction = self.database.leave_transaction_open().await?;
        let begun = Instant::now();
        let mut late = Vec::new();
        let each = documents.div_euclid(i32::try_from(self.stores.len())?).max(1);
        while begun.elapsed() < open_for {
            self.database.copy_document(self.first, &self.stores, each, "pending").await?;
            let times = self.work(Life::Empty, PACE, Some(begun + open_for)).await?;
            let last = begun.elapsed() >= open_for.mul_f64(0.9);
            if last {
                late.extend(times.claims);
            }
        }
        transaction.release().await?;
        Ok(late)
    }

    async fn work(&self, life: Life, pace: Duration, until: Option<Instant>) -> anyhow::Result<Times> {
        let workers = (0..WORKERS).map(|number| self.worker(number, life, pace, until));
        let mut all = Times::default();
        for times in futures::future::try_join_all(workers).await? {
            all.add(times);
        }
        Ok(all)
    }

    /// Claims and finishes until nothing waits, or the time is over.
    async fn worker(&self, number: usize, life: Life, pace: Duration, until: Option<Instant>) -> anyhow::Result<Times> {
        let store = self.database.store(RoleName::Backend)?;
        let owner = format!("bench/{number}/00000000");
        let (mut cursor, mut times, mut empty) = (StoreId(0), Times::default(), 0);
        while empty < 2 && until.is_none_or(|until| Instant::now() < until) {
            let begun = Instant::now();
            store.promote_delayed_documents().await?;
            let claiming = Instant::now();
            let claimed = store.claim_documents(&request(&owner, cursor)).await?;
            times.claims.push(claiming.elapsed().as_secs_f64());
            cursor = claimed.next_cursor.unwrap_or(StoreId(0));
            empty = if claimed.documents.is_empty() && !claimed.contended { empty + 1 } else { 0 };
            let jobs = claimed.documents.iter().map(|claim| self.job(&store, claim, life));
            for job in futures::future::try_join_all(jobs).await? {
                times.add(job);
            }
            sleep_until((begun + pace).into()).await;
        }
        store.close().await;
        Ok(times)
    }

    async fn job(&self, store: &Store, claim: &Claim, life: Life) -> anyhow::Result<Times> {
        let mut times = Times::default();
        let chunks = i32::from(life == Life::OneChunk);
        if life == Life::OneChunk {
            let (chunk, segment) = one_chunk();
            let begun = Instant::now();
            anyhow::ensure!(store.write_chunks(claim.key, &self.settings, &[chunk], &segment).await?, "lost");
            times.writes.push(begun.elapsed().as_secs_f64());
        }
        let revision = self.settings.revision;
        let finish = Finish { chunks, revision, pages: None, title: None, extraction: json!({}) };
        let begun = Instant::now();
        anyhow::ensure!(store.finish_document(claim.key, &finish, patience(LEASE)).await?, "lost");
        times.finishes.push(begun.elapsed().as_secs_f64());
        Ok(times)
    }
}

fn request(owner: &str, cursor: StoreId) -> ClaimRequest<'_> {
    work::claim_request(owner, cursor, SLOTS)
}

/// A kilobyte of text in a hundred and fifty words.
fn one_chunk() -> (NewChunk, NewSegment) {
    let words: Vec<String> = (0..150).map(|word| format!("word{word}")).collect();
    let postings =
        words.iter().map(|word| NewPosting { term: word.clone(), ordinals: vec![0], frequencies: vec![1] }).collect();
    let chunk = work::plain_chunk(0, &words.join(" "), vec![0.05; 384]);
    (chunk, NewSegment { lengths: vec![150], postings })
}
