//! Retrieval in a large store: what the index misses, and how long a search takes.
//!
//! A large and a small store of one width are filled with generated vectors through the tables that workers write to. The
//! large one gets its own table and index as workers give them. What is found is compared with what is nearest by
//! arithmetic here. Latency is that of `POST /v1/retrieve` at an edge that has embedded each question before.

mod scene;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rand::seq::SliceRandom as _;
use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use store::Store;
use store::filters::Within;
use store::vectors::nearest::Nearest;
use store::vectors::tables::Step;
use testkit::{DocumentFilter, PrivateServer, ProjectId, Role, RoleName, Stack, StoreId};
use upstream::{Behaviour, Raw, Script};

use self::scene::{Filled, Generator, OF_A_DOCUMENT, WIDTH, fill};
use crate::arguments::Search;
use crate::figure::{Figure, Unit};
use crate::machine;
use crate::report::{Report, say};
use crate::stats::Samples;

/// Chunks of the small store.
const SMALL: usize = 1_000;
/// What legs ask for, and how many of them are judged.
const CANDIDATES: i64 = 100;
const JUDGED: usize = 10;
const DEADLINE: Duration = Duration::from_secs(30);
const BUILD_MEMORY_MIB: u32 = 256;
/// Words of a question.
const QUESTION_WORDS: usize = 6;

/// Which vectors may be found.
#[derive(Clone, Copy)]
enum Only {
    All,
    /// Those of the documents that a filter on metadata leaves, one in a hundred.
    Hundredth,
}

/// How well a store is searched.
struct Recall {
    share: f64,
    exhaustive: usize,
    took: Samples,
}

pub(crate) async fn run(search: &Search) -> anyhow::Result<Report> {
    let server = PrivateServer::start_named("bench-search").await?;
    let mut report = Report {
        about: json!({ "version": env!("CARGO_PKG_VERSION"), "debug": cfg!(debug_assertions), "machine": machine::describe(),
                       "chunks": search.chunks, "queries": search.queries, "width": WIDTH }),
        ..Report::default()
    };
    let stack = Stack::builder().admins(0).edges(1).database(server.database().await?).start().await?;
    let database = &stack.database;
    let embedding = database.insert_connection("embed", &stack.upstream.base_url(), "demo-embed").await?;
    let project = database.insert_project("bench", "").await?;
    // The project searches the first.
    let large = database.insert_document_store(project, embedding, WIDTH).await?;
    let small = *database.insert_sibling_stores(large, 1).await?.first().context("no small store")?;
    let backend = database.store(RoleName::Backend)?;
    let edge = database.store(RoleName::Edge)?;
    let mut generator = Generator::new(search.seed, search.chunks);
    let begun = Instant::now();
    let of_small = fill(database, &backend, (small, SMALL.min(search.chunks)), &mut generator).await?;
    let of_large = fill(database, &backend, (large, search.chunks), &mut generator).await?;
    say(&format!("{} chunks are written after {:.0} s", search.chunks, begun.elapsed().as_secs_f64()));
    report.figures.extend(give_it_an_index(&backend, large, search.exact_rows).await?);
    let queries: Vec<Vec<f32>> = (0..search.queries).map(|_| generator.vector()).collect();

    let usual = search.exact_rows;
    for (name, filled, only, exact_rows) in [
        ("recall@10, small store beside the large one", &of_small, Only::All, usual),
        ("recall@10, filter that leaves 1 % of the large store", &of_large, Only::Hundredth, usual),
        ("recall@10, large store", &of_large, Only::All, usual),
        // What it would take without the index.
        ("recall@10, large store, compared exactly", &of_large, Only::All, Some(i64::MAX)),
    ] {
        let recall = judge(&edge, filled, only, &queries, exact_rows).await?;
        let figure = Figure::new(name, Unit::Share, recall.share)
            .at_least(0.98)
            .with("exhaustive", Unit::Share, recall.exhaustive as f64 / queries.len().max(1) as f64)
            .with("vector leg p50", Unit::Micros, recall.took.percentile(0.5) * 1e6)
            .with("p95", Unit::Micros, recall.took.percentile(0.95) * 1e6);
        report.figures.push(figure);
    }
    let took = retrieve(&stack, project, &queries, &mut generator).await?;
    report.figures.push(
        Figure::new("retrieval p95, large store, embeddings cached", Unit::Micros, took.percentile(0.95) * 1e6)
            .at_most(25_000.0)
            .with("p50", Unit::Micros, took.percentile(0.5) * 1e6)
            .with("largest", Unit::Micros, took.largest() * 1e6)
            .with("searches", Unit::Count, took.len() as f64),
    );
    backend.close().await;
    edge.close().await;
    stack.shut_down().await?;
    server.stop().await?;
    Ok(report)
}

/// What a worker does with a store that has grown.
async fn give_it_an_index(backend: &Store, store: StoreId, exact_rows: Option<i64>) -> anyhow::Result<Vec<Figure>> {
    let limit = exact_rows.unwrap_or_else(|| store::vectors::exact_rows(WIDTH));
    if backend.count_shared_vectors(store, WIDTH, limit + 1).await? <= limit {
        say("the large store is small enough to be compared exactly");
        return Ok(Vec::new());
    }
    backend.open_vector_table(store).await?;
    let stores = backend.list_vector_stores(Duration::ZERO).await?;
    let own = stores.into_iter().find(|of| of.store == store).and_then(|of| of.own).context("no table")?;
    let begun = Instant::now();
    while let Step::Done(moved) = backend.move_vectors(&own, 2_000).await?
        && moved > 0
    {}
    let moved = begun.elapsed();
    anyhow::ensure!(backend.index_vector_table(&own, BUILD_MEMORY_MIB).await?, "the index was not built");
    let built = begun.elapsed() - moved;
    say(&format!("the index is there after {:.0} s", begun.elapsed().as_secs_f64()));
    Ok(vec![
        Figure::new("taking the vectors to a table of their own", Unit::Micros, moved.as_secs_f64() * 1e6),
        Figure::new("building the index", Unit::Micros, built.as_secs_f64() * 1e6),
    ])
}

/// Compares what the database finds with what is nearest.
async fn judge(
    edge: &Store,
    filled: &Filled,
    only: Only,
    queries: &[Vec<f32>],
    exact_rows: Option<i64>,
) -> anyhow::Result<Recall> {
    let settings = edge.find_search_settings(filled.store).await?.context("the store has no settings")?;
    let filter = DocumentFilter::parse(&json!({ "metadata": { "hundredth": 7 } }), "filter")?;
    let (mut found, mut exhaustive, mut took) = (0, 0, Vec::new());
    for query in queries {
        let begun = Instant::now();
        let within: Option<Within> = match only {
            Only::All => None,
            Only::Hundredth => Some(edge.list_documents_within(filled.store, &filter, DEADLINE).await?),
        };
        let request = Nearest {
            settings: &settings,
            vector: query,
            limit: CANDIDATES,
            within: within.as_ref(),
            deadline: DEADLINE,
            exact_rows,
        };
        let neighbours = edge.nearest_chunks(&request).await?;
        took.push(begun.elapsed().as_secs_f64());
        exhaustive += usize::from(neighbours.plan.is_exhaustive());
        let truth = nearest(query, &filled.vectors, only);
        // Distances, since two vectors may be equally far.
        let farthest = truth.last().copied().unwrap_or_default() + 1e-6;
        found += neighbours.hits.iter().take(truth.len()).filter(|hit| hit.distance <= farthest).count();
        anyhow::ensure!(neighbours.hits.len() >= truth.len(), "only {} were found", neighbours.hits.len());
    }
    let wanted = nearest(queries.first().context("no queries")?, &filled.vectors, only).len() * queries.len();
    Ok(Recall { share: found as f64 / wanted.max(1) as f64, exhaustive, took: Samples::new(took) })
}

/// The distances of the nearest vectors, in ascending order.
fn nearest(query: &[f32], vectors: &[Vec<f32>], only: Only) -> Vec<f64> {
    let is_asked = |at: usize| match only {
        Only::All => true,
        Only::Hundredth => (at / OF_A_DOCUMENT) % 100 == 7,
    };
    let candidates = vectors.iter().enumerate().filter(|(at, _)| is_asked(*at));
    let mut distances: Vec<f64> = candidates.map(|(_, vector)| distance(query, vector)).collect();
    distances.sort_unstable_by(f64::total_cmp);
    distances.truncate(JUDGED);
    distances
}

/// One less the cosine; all vectors here are of unit length.
fn distance(one: &[f32], other: &[f32]) -> f64 {
    1.0 - one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
}

/// Times `POST /v1/retrieve` for questions that the edge has embedded before, in random order.
async fn retrieve(
    stack: &Stack,
    project: ProjectId,
    queries: &[Vec<f32>],
    generator: &mut Generator,
) -> anyhow::Result<Samples> {
    let (_, key) = stack.database.insert_project_key(project).await?;
    let url = format!("{}/v1/retrieve", stack.nth(Role::Edge, 0)?.url());
    let ask = async |question: &str| -> anyhow::Result<(f64, Value)> {
        let begun = Instant::now();
        let body = json!({ "query": question, "top_k": JUDGED }).to_string();
        let request = stack.http.post(&url).bearer_auth(key.secret().expose());
        let answer = request.header("content-type", "application/json").body(body).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        let took = begun.elapsed().as_secs_f64();
        anyhow::ensure!(status.is_success(), "the edge answered {status}: {text}");
        Ok((took, serde_json::from_str(&text)?))
    };
    let mut questions: Vec<String> = Vec::new();
    for query in queries {
        let question = generator.words(QUESTION_WORDS).join(" ");
        let raw = Raw {
            status: 200,
            content_type: "application/json".to_owned(),
            body: json!({ "object": "list", "data": [{ "object": "embedding", "index": 0, "embedding": query }],
                          "usage": { "prompt_tokens": 6, "total_tokens": 6 } })
            .to_string(),
        };
        let answer = Behaviour { raw: Some(raw), ..Behaviour::default() };
        stack.upstream.script(Script { path: "/v1/embeddings".to_owned(), queue: vec![answer], default: None });
        let (_, passages) = ask(&question).await?;
        let found = passages.get("data").and_then(Value::as_array).map_or(0, Vec::len);
        anyhow::ensure!(found > 0 && passages.get("degraded") == Some(&json!([])), "a search is not whole: {passages}");
        questions.push(question);
    }
    let mut times = Vec::new();
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..3 {
        questions.shuffle(&mut random);
        for question in &questions {
            let (took, passages) = ask(question).await?;
            anyhow::ensure!(
                passages.pointer("/usage/total_tokens") == Some(&json!(0)),
                "a question was embedded again"
            );
            times.push(took);
        }
    }
    Ok(Samples::new(times))
}
