//! Stores that get another embedding model while they are searched and written to.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use testkit::{Admin, Project, Role, Stack};
use upstream::{Behaviour, Script, ScriptedError, Wait};

const DOCUMENTS: usize = 6;

async fn notes(admin: &Admin, store: i64, numbers: std::ops::Range<usize>) -> anyhow::Result<Vec<i64>> {
    let mut documents = Vec::new();
    for number in numbers {
        let text = format!("# Note {number}\n\nThe number of this note about kettles is {number}.\n");
        documents.push(admin.upload(store, &format!("note{number}.md"), text.into_bytes()).await?);
    }
    Ok(documents)
}

/// A second connection to the same upstream, to a model whose vectors are as wide as its name says.
async fn connection(stack: &Stack, admin: &Admin, name: &str, model: &str) -> anyhow::Result<i64> {
    let body = json!({
        "name": name, "provider_type": "custom_openai", "base_url": stack.upstream.base_url(), "model_name": model,
    });
    Ok(admin.send(Method::POST, "/models", Some(body)).await?["id"].as_i64().unwrap())
}

async fn ask_for(admin: &Admin, store: i64, connection: i64) -> anyhow::Result<Value> {
    let body = json!({ "embedding_connection_id": connection });
    admin.send(Method::PATCH, &format!("/rag-stores/{store}"), Some(body)).await
}

async fn store(admin: &Admin, store: i64) -> anyhow::Result<Value> {
    admin.send(Method::GET, &format!("/rag-stores/{store}"), None).await
}

/// Waits until no switch is under way.
async fn switched(admin: &Admin, id: i64) -> anyhow::Result<Value> {
    testkit::eventually("the store has changed over", || async {
        let seen = store(admin, id).await?;
        Ok(seen["embedding_switch"].is_null().then_some(seen))
    })
    .await
}

/// The files that a search finds by vectors alone: none has a word of the question.
async fn found(stack: &Stack, project: &Project) -> anyhow::Result<BTreeSet<String>> {
    let url = format!("{}/retrieve", stack.edge_url(0)?);
    let body = json!({ "query": "boiling water", "top_k": 50 });
    let answer = stack.http.post(url).bearer_auth(&project.key).json(&body).send().await?;
    let answer: Value = serde_json::from_slice(&answer.bytes().await?)?;
    anyhow::ensure!(answer["degraded"] == json!([]), "{answer}");
    let hits = answer["data"].as_array().unwrap();
    Ok(hits.iter().filter_map(|hit| hit["filename"].as_str().map(str::to_owned)).collect())
}

fn embeddings(queue: Vec<Behaviour>, default: Option<Behaviour>) -> Script {
    Script { path: "/v1/embeddings".to_owned(), queue, default }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_searched_in_full_while_its_model_changes_and_the_worker_at_it_is_killed() -> anyhow::Result<()> {
    let mut stack = Stack::builder().edges(1).workers(1).set("INGEST_LEASE", "3s").start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    for document in notes(&admin, project.store, 0..DOCUMENTS).await? {
        admin.ready(document).await?;
    }
    let all = found(&stack, &project).await?;
    assert_eq!(all.len(), DOCUMENTS);
    let wide = connection(&stack, &admin, "wide", "text-embedding-3-small").await?;
    let before = store(&admin, project.store).await?;

    // The probe of the width, then the worker's first batch, which waits for the test.
    let held = Behaviour { hold: true, ..Behaviour::default() };
    stack.upstream.script(embeddings(vec![Behaviour::default(), held], None));
    let asked = ask_for(&admin, project.store, wide).await?;
    assert_eq!(asked["embedding_connection_id"], before["embedding_connection_id"], "{asked}");
    assert_eq!(asked["embedding_switch"]["embedding_connection_id"], wide, "{asked}");
    assert_eq!(stack.upstream.wait(Wait { held: Some(1), timeout_ms: Some(30_000), ..Wait::default() }).await.held, 1);
    let seen = store(&admin, project.store).await?;
    assert_eq!(
        (&seen["embedding_switch"]["status"], &seen["embedding_switch"]["chunks_total"], &seen["dimensions"]),
        (&json!("building"), &json!(DOCUMENTS), &json!(384)),
        "{seen}"
    );
    assert_eq!(found(&stack, &project).await?, all, "searches use what is complete");

    stack.nth_mut(Role::Worker, 0)?.kill().await?;
    stack.upstream.release(None);
    // One goes and two come while nobody works at it.
    let added = notes(&admin, project.store, DOCUMENTS..DOCUMENTS + 2).await?;
    assert_eq!(found(&stack, &project).await?, all);
    stack.spawn(Role::Worker).await?;
    let seen = switched(&admin, project.store).await?;
    assert_eq!((&seen["embedding_connection_id"], &seen["dimensions"]), (&json!(wide), &json!(1536)), "{seen}");
    for document in added {
        admin.ready(document).await?;
    }
    assert_eq!(found(&stack, &project).await?.len(), DOCUMENTS + 2);
    stack.nth_mut(Role::Worker, 1)?.stop(Duration::from_secs(60)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_search_meets_half_of_a_store_however_often_its_model_changes() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(1).workers(2).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    for document in notes(&admin, project.store, 0..DOCUMENTS).await? {
        admin.ready(document).await?;
    }
    let all = found(&stack, &project).await?;
    let first = store(&admin, project.store).await?["embedding_connection_id"].as_i64().unwrap();
    let same = connection(&stack, &admin, "same", "another-embed").await?;
    let half = connection(&stack, &admin, "half", "text-embedding-3-large").await?;
    for wanted in [same, half, first, half] {
        ask_for(&admin, project.store, wanted).await?;
        let mut searches = 0;
        testkit::until("the store has changed over", || {
            searches += 1;
            let (stack, project, admin, all) = (&stack, &project, &admin, &all);
            async move {
                anyhow::ensure!(found(stack, project).await? == *all, "a search has met half of the store");
                Ok(store(admin, project.store).await?["embedding_switch"].is_null())
            }
        })
        .await?;
        assert!(searches > 0);
        assert_eq!(store(&admin, project.store).await?["embedding_connection_id"], wanted);
        assert_eq!(found(&stack, &project).await?, all);
    }
    // What was there of a model is not paid for again: the second time round nothing was.
    let calls = stack.upstream.log(0).calls;
    let built = calls.iter().filter(|call| {
        call.path == "/v1/embeddings"
            && call.body["model"] == "text-embedding-3-large"
            && call.body["input"].as_array().is_some_and(|inputs| inputs.len() > 1)
    });
    assert_eq!(built.count(), 1);
    stack.shut_down().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_refuses_leaves_the_store_as_it_is_and_says_why() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(1).workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    for document in notes(&admin, project.store, 0..DOCUMENTS).await? {
        admin.ready(document).await?;
    }
    let all = found(&stack, &project).await?;
    let before = store(&admin, project.store).await?;
    let other = connection(&stack, &admin, "other", "another-embed").await?;
    let refused = Behaviour { error: Some(ScriptedError::status(404)), ..Behaviour::default() };
    stack.upstream.script(embeddings(vec![Behaviour::default(), refused], None));
    ask_for(&admin, project.store, other).await?;
    let seen = testkit::eventually("it has failed", || async {
        let seen = store(&admin, project.store).await?;
        Ok((seen["embedding_switch"]["status"] == "failed").then_some(seen))
    })
    .await?;
    assert_eq!(seen["embedding_switch"]["error"]["code"], "embedding_rejected", "{seen}");
    assert_eq!(seen["embedding_connection_id"], before["embedding_connection_id"]);
    assert_eq!(found(&stack, &project).await?, all);

    // Asked for again it is tried again; what the first one is asked for, it ends.
    ask_for(&admin, project.store, other).await?;
    assert_eq!(switched(&admin, project.store).await?["embedding_connection_id"], other);
    assert_eq!(found(&stack, &project).await?, all);
    stack.shut_down().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_waits_for_the_budget_of_its_project_and_is_paid_from_it() -> anyhow::Result<()> {
    let stack = Stack::builder().workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    for document in notes(&admin, project.store, 0..DOCUMENTS).await? {
        admin.ready(document).await?;
    }
    let limits = async |tokens: i64| {
        let limits = json!({ "limits": { "tokens_per_month": tokens } });
        admin.send(Method::PATCH, &format!("/projects/{}", project.id), Some(limits)).await
    };
    limits(1).await?;
    let other = connection(&stack, &admin, "other", "another-embed").await?;
    ask_for(&admin, project.store, other).await?;
    let seen = testkit::eventually("it waits", || async {
        let seen = store(&admin, project.store).await?;
        Ok((seen["embedding_switch"]["status"] == "waiting").then_some(seen))
    })
    .await?;
    assert_eq!(seen["embedding_switch"]["error"]["code"], "budget", "{seen}");
    limits(100_000).await?;
    switched(&admin, project.store).await?;
    let calls = stack.database.logged_calls(testkit::ProjectId(project.id)).await?;
    let paid = calls.iter().filter(|call| call.model.as_deref() == Some("another-embed")).count();
    assert_eq!(paid, 1, "{calls:?}");
    stack.shut_down().await
}
