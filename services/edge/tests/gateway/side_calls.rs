//! Calls to models that an answer needs besides its own, when they fail.

use futures::future::join_all;
use serde_json::{Value, json};
use testkit::LoggedCall;
use upstream::{Behaviour, Raw, Script, Wait};

use crate::passages;
use crate::world::{CHAT, Edge, World, answer_tokens, body_of};

const QUESTION: &str = "How long does the warranty of the Brewmaster last?";
const EMBEDDINGS: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";
const RETRIEVE: &str = "/v1/retrieve";

fn useless() -> Behaviour {
    let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: "{}".to_owned() };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

fn every(world: &World, path: &str, behaviour: Behaviour) {
    world.upstream.script(Script { path: path.to_owned(), default: Some(behaviour), ..Script::default() });
}

async fn retrieve(edge: &Edge) -> anyhow::Result<Value> {
    Ok(body_of(edge.post(RETRIEVE, &json!({ "query": QUESTION })).send().await?, 200).await)
}

fn charged(call: &LoggedCall) -> (i64, i64, &str) {
    (call.charged_tokens, call.charged_cost, &call.state)
}

#[tokio::test]
async fn an_answer_of_no_use_is_charged_by_our_count() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    let database = &world.database;
    database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    database.insert_price("real-chat", 1_000_000_000, 0).await?;
    database.insert_price_of("voyage_rerank", "order", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let query = answer_tokens(QUESTION);

    every(&world, EMBEDDINGS, useless());
    assert_eq!(retrieve(&edge).await?["degraded"], json!(["vector"]));
    let embedded = world.the_logged_call().await?;
    assert_eq!(charged(&embedded), (query, query * 1000, "estimated"));
    edge.stop().await?;

    let reranker = database.insert_connection("order", &world.upstream.base_url(), "order").await?;
    database.change_connection(reranker, "provider_type = 'voyage_rerank'").await?;
    let set = json!({ "rerank": { "connection_id": reranker }, "condense": true });
    database.change_project(world.project, &format!("retrieval = '{set}'")).await?;
    let edge = world.edge().await?;
    every(&world, RERANK, useless());
    assert_eq!(retrieve(&edge).await?["degraded"], json!(["vector", "rerank"]));
    let reranked = &world.logged(2).await?[1];
    assert!(reranked.charged_tokens > 2 * query, "{reranked:?}");
    assert_eq!(charged(reranked), (reranked.charged_tokens, reranked.charged_tokens * 1000, "estimated"));

    let answered = Behaviour { content: Some("Thirty months.".to_owned()), ..Behaviour::default() };
    let queue = vec![useless(), answered];
    world.upstream.script(Script { path: CHAT.to_owned(), queue, ..Script::default() });
    let said = json!({ "role": "user", "content": QUESTION });
    let chat = json!({ "model": "fast", "messages": [said, { "role": "assistant", "content": "Long." }, said] });
    body_of(edge.post(CHAT, &chat).send().await?, 200).await;
    let chat = &world.logged(3).await?[2];
    let beside = chat.charged_tokens - chat.prompt_tokens.unwrap() - chat.completion_tokens.unwrap();
    let condensed = beside - reranked.charged_tokens;
    assert!(condensed > 60 && chat.state == "estimated", "{condensed}: {chat:?}");
    edge.stop().await
}

#[tokio::test]
async fn who_does_not_wait_long_pays_and_holds_nothing_against_the_provider() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    every(&world, EMBEDDINGS, Behaviour { hold: true, ..Behaviour::default() });
    // As many as would open a breaker.
    for answer in join_all((0..5).map(|_| retrieve(&edge))).await {
        assert_eq!(answer?["degraded"], json!(["vector"]));
    }
    world.upstream_until(Wait { aborted: Some(5), open: Some(0), ..Wait::default() }).await?;
    let query = answer_tokens(QUESTION);
    for call in world.logged(5).await? {
        assert_eq!(charged(&call), (query, query * 1000, "estimated"), "{call:?}");
    }
    every(&world, EMBEDDINGS, Behaviour::default());
    assert_eq!(retrieve(&edge).await?["degraded"], json!([]));
    edge.stop().await
}
