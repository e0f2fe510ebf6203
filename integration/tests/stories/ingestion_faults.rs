//! Workers that are killed, stopped and replaced.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DocumentId, PrivateServer, Role, Stack, StoreId};
use upstream::{Behaviour, Script, ScriptedError, Wait};

use crate::{is_long_run, sample};

/// The next call for vectors waits until the test lets it go.
fn hold_the_next_embedding() -> Script {
    let held = Behaviour { hold: true, ..Behaviour::default() };
    Script { path: "/v1/embeddings".to_owned(), queue: vec![held], ..Script::default() }
}

fn until_held() -> Wait {
    Wait { held: Some(1), timeout_ms: Some(30_000), ..Wait::default() }
}

#[tokio::test]
async fn a_worker_killed_in_the_middle_is_replaced_and_the_document_is_ready_once() -> anyhow::Result<()> {
    let mut stack = Stack::builder().workers(1).set("INGEST_LEASE", "3s").start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    stack.upstream.script(hold_the_next_embedding());
    let document = admin.upload(project.store, sample::MANUAL, sample::read(sample::MANUAL)?).await?;
    assert_eq!(stack.upstream.wait(until_held()).await.held, 1, "the worker is in the middle of it");
    let seen = admin.document(document).await?;
    assert_eq!(seen["status"], "processing", "{seen}");
    stack.nth_mut(Role::Worker, 0)?.kill().await?;
    stack.upstream.release(None);

    stack.spawn(Role::Worker).await?;
    let ready = admin.ready(document).await?;
    assert_eq!((ready["content_version"].as_i64(), ready["live_version"].as_i64()), (Some(1), Some(1)));
    let log = stack.nth(Role::Worker, 1)?.log();
    assert_eq!(log.matches("a document is ready").count(), 1, "{log}");
    stack.nth_mut(Role::Worker, 1)?.stop(Duration::from_secs(60)).await?;
    let pool = stack.database.chunk_facts(document).await?;
    assert_eq!(pool.chunks, ready["chunk_count"].as_i64().unwrap());
    assert_eq!((pool.vectors, pool.versions), (pool.chunks, 1));
    Ok(())
}

#[tokio::test]
async fn a_worker_told_to_stop_puts_its_document_back_without_costing_an_attempt() -> anyhow::Result<()> {
    let mut stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    stack.upstream.script(hold_the_next_embedding());
    let document = admin.upload(project.store, sample::MANUAL, sample::read(sample::MANUAL)?).await?;
    assert_eq!(stack.upstream.wait(until_held()).await.held, 1);
    let worker = stack.nth_mut(Role::Worker, 0)?;
    worker.signal(Signal::TERM)?;
    // A second signal does not wait for the running job.
    testkit::until("the worker has begun to stop", || {
        let log = worker.log();
        async move { Ok(log.contains("stop claiming")) }
    })
    .await?;
    worker.signal(Signal::TERM)?;
    assert!(worker.ended(Duration::from_secs(60)).await?.success());
    let back = admin.document(document).await?;
    assert_eq!((back["status"].as_str(), back["attempts"].as_i64()), (Some("pending"), Some(0)), "{back}");
    assert_eq!(back["queue"]["position"], 1, "{back}");

    stack.upstream.clear();
    stack.spawn(Role::Worker).await?;
    admin.ready(document).await?;
    stack.shut_down().await
}

#[tokio::test]
async fn three_workers_share_ten_documents_and_pay_for_each_once() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(3).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let mut documents = Vec::new();
    for number in 0..10 {
        let text = format!("# Note {number}\n\nThe number of this note is {number}.\n");
        documents.push(admin.upload(project.store, &format!("note{number}.md"), text.into_bytes()).await?);
    }
    for document in documents {
        admin.ready(document).await?;
    }
    let calls = stack.upstream.log(0).calls;
    // One more was the store asking for the model's width.
    assert_eq!(calls.iter().filter(|call| call.path == "/v1/embeddings").count(), 11);
    stack.shut_down().await
}

/// Waits until a worker's log has a line.
async fn logged(stack: &Stack, worker: usize, line: &str) -> anyhow::Result<()> {
    testkit::until(line, || async { Ok(stack.nth(Role::Worker, worker)?.log().contains(line)) }).await
}

#[tokio::test]
async fn a_worker_stopped_for_longer_than_its_lease_wakes_up_and_changes_nothing() -> anyhow::Result<()> {
    let mut stack = Stack::builder().workers(1).set("INGEST_LEASE", "3s").start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    stack.upstream.script(hold_the_next_embedding());
    let document = admin.upload(project.store, sample::MANUAL, sample::read(sample::MANUAL)?).await?;
    assert_eq!(stack.upstream.wait(until_held()).await.held, 1, "the worker is in the middle of it");
    stack.nth(Role::Worker, 0)?.signal(Signal::STOP)?;

    stack.spawn(Role::Worker).await?;
    let ready = admin.ready(document).await?;
    let stored = stack.database.chunk_facts(document).await?;
    let totals = stack.database.ingest_totals(&[StoreId(project.store)]).await?;
    assert_eq!(stored.chunks, ready["chunk_count"].as_i64().unwrap());
    // What it was waiting for is there when it wakes up.
    stack.upstream.release(None);
    stack.nth(Role::Worker, 0)?.signal(Signal::CONT)?;
    logged(&stack, 0, "a job ended after its claim was lost; nothing was written").await?;
    assert_eq!(admin.document(document).await?, ready);
    assert_eq!(stack.database.chunk_facts(document).await?, stored);
    assert_eq!(stack.database.ingest_totals(&[StoreId(project.store)]).await?, totals);

    // It is as good as any other again.
    stack.nth_mut(Role::Worker, 1)?.kill().await?;
    let next = admin.upload(project.store, "note.md", b"# Note\n\nAnother one.\n".to_vec()).await?;
    admin.ready(next).await?;
    stack.nth_mut(Role::Worker, 0)?.stop(Duration::from_secs(60)).await?;
    let log = stack.nth(Role::Worker, 0)?.log();
    let told = log.lines().find(|line| line.contains("documents of this process since its start"));
    let told: Value = serde_json::from_str(told.unwrap())?;
    let figure = |name: &str| told.to_string().contains(&format!("\"{name}\":1"));
    assert!(figure("fenced") && figure("finished"), "{told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_database_costs_no_attempt_and_no_document() -> anyhow::Result<()> {
    let mut server = PrivateServer::start_named("ingestion").await?;
    let database = server.database().await?;
    let stack = Stack::builder().workers(2).database(database).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    stack.upstream.script(hold_the_next_embedding());
    let held = admin.upload(project.store, sample::MANUAL, sample::read(sample::MANUAL)?).await?;
    assert_eq!(stack.upstream.wait(until_held()).await.held, 1);
    let mut documents = vec![held];
    for number in 0..10 {
        let text = format!("# Note {number}\n\nThe number of this note is {number}.\n");
        documents.push(admin.upload(project.store, &format!("note{number}.md"), text.into_bytes()).await?);
    }
    server.halt().await?;
    // The answer comes when nothing can be written.
    stack.upstream.release(None);
    testkit::until("the end of the job could not be recorded", || async {
        let logs = [0, 1].map(|worker| stack.nth(Role::Worker, worker).map(|worker| worker.log()).unwrap_or_default());
        Ok(logs.iter().any(|log| log.contains("the end of a job could not be recorded")))
    })
    .await?;
    server.resume().await?;
    let waits = testkit::eventually("it waits out what has passed", || async {
        let facts = stack.database.document_facts(DocumentId(held)).await;
        Ok(facts.ok().filter(|facts| facts.status == "delayed"))
    })
    .await?;
    assert_eq!((waits.attempts, waits.retries, waits.claim_token), (0, 1, 1));
    for document in documents {
        let ready = testkit::eventually("it is ready", || async {
            // The admin service may be away for a moment too.
            let seen = admin.document(document).await.ok();
            Ok(seen.filter(|seen| matches!(seen["status"].as_str(), Some("ready" | "failed"))))
        })
        .await?;
        assert_eq!(ready["status"], "ready", "{ready}");
        let stored = stack.database.chunk_facts(document).await?;
        assert_eq!((stored.chunks, stored.vectors), (ready["chunk_count"].as_i64().unwrap(), stored.chunks));
    }
    let totals = stack.database.ingest_totals(&[StoreId(project.store)]).await?;
    assert_eq!((totals.ready, totals.finishes), (11, 11), "each was finished once");
    stack.shut_down().await?;
    server.stop().await
}

#[tokio::test]
async fn a_provider_that_is_down_pauses_its_store_instead_of_failing_its_documents() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let embeddings =
        |behaviour| Script { path: "/v1/embeddings".to_owned(), default: Some(behaviour), ..Script::default() };
    let before = stack.upstream.counters().requests;
    stack.upstream.script(embeddings(Behaviour { error: Some(ScriptedError::status(503)), ..Behaviour::default() }));
    let mut documents = Vec::new();
    for number in 0..20 {
        let text = format!("# Note {number}\n\nThe number of this note is {number}.\n");
        documents.push(admin.upload(project.store, &format!("note{number}.md"), text.into_bytes()).await?);
    }
    logged(&stack, 0, "a connection keeps failing and is left alone").await?;
    let totals = testkit::eventually("nothing runs any more", || async {
        let totals = stack.database.ingest_totals(&[StoreId(project.store)]).await?;
        Ok((totals.processing == 0).then_some(totals))
    })
    .await?;
    // Two at a time, three calls each, and the fifth failure is the last.
    assert!(totals.retries >= 1 && totals.retries <= 4, "{totals:?}");
    assert_eq!((totals.ready, totals.failed, totals.attempts), (0, 0, 0), "{totals:?}");
    assert!(totals.pending >= 16, "{totals:?}");
    let asked = stack.upstream.counters().requests - before;
    assert!((5..=8).contains(&asked), "{asked}");

    stack.upstream.script(embeddings(Behaviour::default()));
    logged(&stack, 0, "a connection works again and is used again").await?;
    for document in documents {
        admin.ready(document).await?;
    }
    stack.shut_down().await
}

#[tokio::test]
async fn a_provider_gets_the_time_that_it_asks_for() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let busy = ScriptedError { retry_after: Some("3600".to_owned()), ..ScriptedError::status(429) };
    let busy = Behaviour { error: Some(busy), ..Behaviour::default() };
    stack.upstream.script(Script { path: "/v1/embeddings".to_owned(), queue: vec![busy], ..Script::default() });
    let document = admin.upload(project.store, "note.md", b"# Note\n\nOne.\n".to_vec()).await?;
    let seen = testkit::eventually("it waits", || async {
        let seen = admin.document(document).await?;
        Ok((seen["status"] == "delayed").then_some(seen))
    })
    .await?;
    assert_eq!((&seen["stage"], &seen["error"]["code"]), (&json!("waiting"), &json!("embedding_unavailable")));
    assert_eq!((&seen["attempts"], &seen["retries"]), (&json!(0), &json!(1)), "{seen}");
    assert_eq!(stack.database.seconds_until_due(DocumentId(document)).await? / 600, 5, "nearly an hour");
    // Whoever cannot wait says so.
    admin.send(Method::POST, &format!("/documents/{document}/reprocess"), None).await?;
    admin.ready(document).await?;
    stack.shut_down().await
}

#[tokio::test]
async fn a_document_waits_for_its_projects_budget_and_goes_on_when_that_is_raised() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({ "limits": { "tokens_per_month": 1 } })).await?;
    let admin = stack.admin().await?;
    let document = admin.upload(project.store, "note.md", b"# Note\n\nThis is more than one token.\n".to_vec()).await?;
    let seen = testkit::eventually("it waits", || async {
        let seen = admin.document(document).await?;
        Ok((seen["status"] == "delayed").then_some(seen))
    })
    .await?;
    assert_eq!(seen["error"]["code"], "budget", "{seen}");
    assert_eq!((&seen["attempts"], &seen["retries"]), (&json!(0), &json!(0)), "{seen}");
    let raised = json!({ "limits": { "tokens_per_month": 1000 } });
    admin.send(Method::PATCH, &format!("/projects/{}", project.id), Some(raised)).await?;
    admin.ready(document).await?;
    stack.shut_down().await
}

#[tokio::test]
async fn the_next_document_of_a_bounded_store_begins_when_one_ends() -> anyhow::Result<()> {
    // Far longer than the test may take: nothing here is found by polling.
    let mut stack = Stack::builder().set("INGEST_POLL_INTERVAL", "300s").start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    admin.send(Method::PATCH, &format!("/rag-stores/{}", project.store), Some(json!({ "max_running": 1 }))).await?;
    stack.upstream.script(hold_the_next_embedding());
    let mut documents = Vec::new();
    for number in 0..3 {
        let text = format!("# Note {number}\n\nThe number of this note is {number}.\n");
        documents.push(admin.upload(project.store, &format!("note{number}.md"), text.into_bytes()).await?);
    }
    stack.spawn(Role::Worker).await?;
    assert_eq!(stack.upstream.wait(until_held()).await.held, 1);
    let totals = stack.database.ingest_totals(&[StoreId(project.store)]).await?;
    assert_eq!((totals.processing, totals.pending), (1, 2));
    assert_eq!(admin.document(documents[2]).await?["stage"], "queued");
    stack.upstream.release(None);
    for document in documents {
        admin.ready(document).await?;
    }
    stack.shut_down().await
}

#[tokio::test]
async fn fifty_stores_with_one_document_each_do_not_wait_for_a_store_with_many() -> anyhow::Result<()> {
    let mut stack = Stack::builder().start().await?;
    let big = stack.project("big", json!({})).await?;
    let admin = stack.admin().await?;
    let small = stack.database.insert_sibling_stores(StoreId(big.store), 50).await?;
    let first = admin.upload(big.store, "note.md", b"# Note\n\nOne of many.\n".to_vec()).await?;
    let many = if is_long_run() { 50_000 } else { 2_000 };
    stack.database.copy_document(DocumentId(first), &[StoreId(big.store)], many, "pending").await?;
    stack.database.copy_document(DocumentId(first), &small, 1, "pending").await?;
    stack.spawn(Role::Worker).await?;
    stack.spawn(Role::Worker).await?;
    testkit::until("all small stores are served", || async {
        Ok(stack.database.ingest_totals(&small).await?.ready == 50)
    })
    .await?;
    let served = stack.database.count_ready_before(&small, StoreId(big.store)).await?;
    // Each worker goes round the stores and takes one of each.
    assert!(served <= 20, "the large store was served {served} times before the last of the small ones");
    for worker in [0, 1] {
        stack.nth_mut(Role::Worker, worker)?.kill().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_survive_workers_that_are_killed_at_random() -> anyhow::Result<()> {
    let (count, kills): (i64, i64) = if is_long_run() { (10_000, 60) } else { (150, 4) };
    let workers = 2;
    let stack = Stack::builder().workers(3).set("INGEST_LEASE", "3s").set("MAX_PENDING_DOCUMENTS", "100000");
    let mut stack = stack.set("INGEST_WORKERS", &workers.to_string()).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let before = stack.upstream.counters().requests;
    let upload = tokio::spawn({
        let admin = admin.clone();
        async move {
            let uploads = (0..count).map(|number| {
                let text = format!("# Note {number}\n\nThe number of this note is {number}.\n").into_bytes();
                let (admin, name) = (admin.clone(), format!("note{number}.md"));
                async move { admin.upload(project.store, &name, text).await }
            });
            futures::stream::iter(uploads).buffer_unordered(4).try_collect::<Vec<_>>().await
        }
    });
    let seed: u64 = rand::random();
    println!("kills by seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut alive = vec![0, 1, 2];
    let mut killed = 0;
    let totals = loop {
        // Somewhere within each share of the work.
        let at = count * killed / kills + random.random_range(0..(count / kills).max(1));
        let due = |ready: i64| if killed < kills { ready >= at } else { ready == count };
        let mut before = -1;
        let totals = loop {
            let totals = testkit::eventually("one more document is ready", || async {
                let totals = stack.database.ingest_totals(&[StoreId(project.store)]).await?;
                anyhow::ensure!(totals.failed == 0, "{totals:?}");
                Ok((totals.ready > before).then_some(totals))
            })
            .await?;
            before = totals.ready;
            if due(before) {
                break totals;
            }
        };
        if killed == kills {
            break totals;
        }
        killed += 1;
        let place = random.random_range(0..alive.len());
        stack.nth_mut(Role::Worker, alive[place])?.kill().await?;
        stack.spawn(Role::Worker).await?;
        alive[place] = 2 + usize::try_from(killed)?;
    };
    assert_eq!(i64::try_from(upload.await??.len())?, count);
    let asked = i64::try_from(stack.upstream.counters().requests - before)?;
    println!("{count} documents, {killed} kills, {asked} calls for vectors");
    assert_eq!(
        (totals.ready, totals.finishes, totals.attempts),
        (count, count, 0),
        "each became ready once: {totals:?}"
    );
    assert_eq!((totals.chunks, totals.vectors, totals.segments), (count, count, count), "nothing is half-written");
    assert!(asked >= count && asked <= count + kills * workers, "paid twice is at most what was in flight: {asked}");
    for worker in alive {
        stack.nth_mut(Role::Worker, worker)?.stop(Duration::from_secs(60)).await?;
    }
    Ok(())
}
