//! `/v1/retrieve`: what is embedded once.

use serde_json::{Value, json};

use crate::passages::{QUESTION, world};
use crate::world::{World, body_of};

fn embedded(world: &World) -> usize {
    world.upstream.log(0).calls.iter().filter(|call| call.path == "/v1/embeddings").count()
}

#[tokio::test]
async fn a_question_asked_again_is_not_embedded_again_and_costs_nothing() -> anyhow::Result<()> {
    let (world, _) = world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let ask = async |query: &str| -> anyhow::Result<Value> {
        Ok(body_of(edge.post("/v1/retrieve", &json!({ "query": query })).send().await?, 200).await)
    };
    let first = ask(QUESTION).await?;
    let again = ask(QUESTION).await?;
    assert_eq!(first["data"], again["data"]);
    assert_eq!((&again["degraded"], &again["usage"]["total_tokens"]), (&json!([]), &json!(0)));
    assert!(first["usage"]["total_tokens"].as_i64().unwrap() > 0);
    assert_eq!(embedded(&world), 1);
    let logged = world.logged(2).await?;
    let charged: Vec<_> = logged.iter().map(|call| (call.charged_requests, call.charged_tokens > 0)).collect();
    assert_eq!(charged, [(1, true), (1, false)]);
    assert_eq!(logged[1].charged_cost, 0);
    ask("Where is the machine stored?").await?;
    assert_eq!(embedded(&world), 2, "another question is another vector");
    edge.stop().await
}
