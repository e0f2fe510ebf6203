//! Workers that are killed, stopped and replaced.

use std::time::Duration;

use serde_json::json;
use testkit::{Role, Stack};
use upstream::{Behaviour, Script, Wait};

use crate::sample;

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
    worker.signal(rustix::process::Signal::TERM)?;
    // A second signal does not wait for the running job.
    testkit::until("the worker has begun to stop", || {
        let log = worker.log();
        async move { Ok(log.contains("stop claiming")) }
    })
    .await?;
    worker.signal(rustix::process::Signal::TERM)?;
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
