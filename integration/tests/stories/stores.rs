//! What becomes of documents when they are replaced, deleted and read again while workers are at them.

use std::collections::BTreeSet;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::{Project, Role, Stack};
use upstream::{Behaviour, Script, Wait};

fn hold_the_next_embedding() -> Script {
    let held = Behaviour { hold: true, ..Behaviour::default() };
    Script { path: "/v1/embeddings".to_owned(), queue: vec![held], ..Script::default() }
}

async fn until_held(stack: &Stack) {
    let held = Wait { held: Some(1), timeout_ms: Some(30_000), ..Wait::default() };
    assert_eq!(stack.upstream.wait(held).await.held, 1, "the worker is in the middle of it");
}

fn manual(last: &str) -> Vec<u8> {
    let mut text = "# Manual\n\nHow to use it.\n".to_owned();
    for part in ["Boiling", "Cleaning", "Descaling", "Storing"] {
        text.push_str(&format!("\n## {part}\n\nAll there is to say about {part}.\n"));
    }
    text.push_str(&format!("\n## Repairing\n\n{last}\n"));
    text.into_bytes()
}

/// Texts that were sent to be embedded since so many calls.
fn embedded(stack: &Stack, after: usize) -> Vec<String> {
    let calls = stack.upstream.log(0).calls;
    let calls = calls.iter().filter(|call| call.path == "/v1/embeddings").skip(after);
    let inputs = calls.flat_map(|call| call.body["input"].as_array().cloned().unwrap_or_default());
    inputs.filter_map(|input| input.as_str().map(str::to_owned)).collect()
}

fn calls_for_vectors(stack: &Stack) -> usize {
    stack.upstream.log(0).calls.iter().filter(|call| call.path == "/v1/embeddings").count()
}

async fn found(stack: &Stack, project: &Project) -> anyhow::Result<BTreeSet<i64>> {
    let url = format!("{}/retrieve", stack.edge_url(0)?);
    let body = json!({ "query": "water", "top_k": 50 });
    let answer = stack.http.post(url).bearer_auth(&project.key).json(&body).send().await?;
    let answer: Value = serde_json::from_slice(&answer.bytes().await?)?;
    anyhow::ensure!(answer["degraded"] == json!([]), "{answer}");
    Ok(answer["data"].as_array().unwrap().iter().filter_map(|hit| hit["document_id"].as_i64()).collect())
}

#[tokio::test]
async fn new_content_under_a_key_is_paid_for_where_it_is_new() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let keyed = format!("/rag-stores/{}/documents?external_key=manual", project.store);
    let upload = async |bytes: Vec<u8>| {
        let (status, document) = admin.try_upload_to(&keyed, "manual.md", bytes).await?;
        anyhow::ensure!(status == StatusCode::ACCEPTED, "{status}: {document}");
        Ok(document)
    };
    let first = upload(manual("Call us.")).await?;
    let id = first["id"].as_i64().unwrap();
    let before = admin.ready(id).await?["chunk_count"].as_i64().unwrap();
    let calls = calls_for_vectors(&stack);
    let second = upload(manual("Call somebody else.")).await?;
    assert_eq!((&second["id"], &second["live_version"]), (&json!(id), &json!(1)), "{second}");
    let ready = admin.ready(id).await?;
    assert_eq!((&ready["live_version"], ready["chunk_count"].as_i64()), (&json!(2), Some(before)), "{ready}");
    let new = embedded(&stack, calls);
    assert!(new.len() == 1 && new[0].ends_with("Call somebody else."), "{new:?}");
    testkit::until("the old version is removed", || async {
        Ok(stack.database.chunk_facts(id).await?.chunks == before)
    })
    .await?;
    let facts = stack.database.chunk_facts(id).await?;
    assert_eq!((facts.vectors, facts.versions), (before, 1));

    // The same once more is no news, and beside it only when that is asked for.
    let same = upload(manual("Call somebody else.")).await?;
    assert_eq!((&same["duplicate_of"], &same["content_version"]), (&json!(id), &json!(2)), "{same}");
    let twice = format!("/rag-stores/{}/documents?allow_duplicate=true", project.store);
    let (_, other) = admin.try_upload_to(&twice, "copy.md", manual("Call somebody else.")).await?;
    assert!(other["id"] != json!(id) && other.get("duplicate_of").is_none(), "{other}");
    let calls = calls_for_vectors(&stack);
    admin.ready(other["id"].as_i64().unwrap()).await?;
    assert_eq!(calls_for_vectors(&stack), calls, "all its vectors were paid for");
    stack.shut_down().await
}

#[tokio::test]
async fn what_is_deleted_while_a_worker_is_at_it_leaves_nothing_and_can_come_back_at_once() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).set("INGEST_LEASE", "3s").start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let nothing_is_left = async |documents: i64| {
        testkit::until("rows of what was deleted are removed", || async {
            Ok(stack.database.upload_facts().await?.documents == documents)
        })
        .await
    };
    stack.upstream.script(hold_the_next_embedding());
    let first = admin.upload(project.store, "manual.md", manual("Call us.")).await?;
    until_held(&stack).await;
    admin.send(Method::DELETE, &format!("/documents/{first}"), None).await?;
    assert_eq!(admin.try_send(Method::GET, &format!("/documents/{first}"), None).await?.0, StatusCode::NOT_FOUND);
    let second = admin.upload(project.store, "manual.md", manual("Call us.")).await?;
    assert_ne!(first, second);
    stack.upstream.release(None);
    admin.ready(second).await?;
    nothing_is_left(1).await?;
    let totals = stack.database.ingest_totals(&[testkit::StoreId(project.store)]).await?;
    assert_eq!((totals.ready, totals.chunks, totals.vectors), (1, totals.chunks, totals.chunks), "{totals:?}");
    let facts = stack.database.chunk_facts(second).await?;
    assert_eq!(totals.chunks, facts.chunks, "nothing of the first: {totals:?}");

    stack.upstream.script(hold_the_next_embedding());
    admin.upload(project.store, "other.md", manual("Throw it away.")).await?;
    until_held(&stack).await;
    admin.send(Method::DELETE, &format!("/rag-stores/{}", project.store), None).await?;
    stack.upstream.release(None);
    nothing_is_left(0).await?;
    let (status, _) = admin.try_upload(project.store, "late.md", manual("Too late.")).await?;
    assert_eq!(status, StatusCode::NOT_FOUND);
    testkit::until("nothing is left of the store", || async {
        let totals = stack.database.ingest_totals(&[testkit::StoreId(project.store)]).await?;
        Ok((totals.chunks, totals.vectors, totals.segments) == (0, 0, 0))
    })
    .await?;
    let log = stack.nth(Role::Worker, 0)?.log();
    assert!(!log.contains("\"level\":\"ERROR\"") && !log.contains("a document failed"), "{log}");
    stack.shut_down().await
}

#[tokio::test]
async fn documents_are_found_as_they_were_while_all_are_read_again() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(1).workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let mut documents = Vec::new();
    for number in 0..4 {
        documents.push(admin.upload(project.store, "manual.md", manual(&format!("Call {number}."))).await?);
    }
    for document in &documents {
        admin.ready(*document).await?;
    }
    let all: BTreeSet<i64> = documents.iter().copied().collect();
    assert_eq!(found(&stack, &project).await?, all);
    let path = format!("/rag-stores/{}", project.store);
    let changed = admin.send(Method::PATCH, &path, Some(json!({ "contextual": false }))).await?;
    assert_eq!(changed["reprocess_recommended"], true, "{changed}");
    let changed = admin.send(Method::PATCH, &path, Some(json!({ "max_documents": 50 }))).await?;
    assert_eq!(changed["reprocess_recommended"], false, "{changed}");
    stack.upstream.script(hold_the_next_embedding());
    let answer = admin.send(Method::POST, &format!("{path}/reprocess"), None).await?;
    assert_eq!(answer, json!({ "documents": 4 }));
    until_held(&stack).await;
    assert_eq!(found(&stack, &project).await?, all);
    stack.upstream.release(None);
    for document in &documents {
        let ready = admin.ready(*document).await?;
        assert_eq!((&ready["content_version"], &ready["live_version"]), (&json!(2), &json!(2)), "{ready}");
    }
    assert_eq!(found(&stack, &project).await?, all);
    stack.shut_down().await
}
