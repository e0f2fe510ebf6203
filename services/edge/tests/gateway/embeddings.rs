//! Embeddings, passed through.

use serde_json::json;
use upstream::{Behaviour, Raw, Script, ScriptedError};

use crate::world::{World, body_of, error_of, header};

const PATH: &str = "/v1/embeddings";

async fn world() -> anyhow::Result<World> {
    let world = World::new().await?;
    let connection = world.database.insert_connection("embed", &world.upstream.base_url(), "demo-embed").await?;
    world.database.insert_route(world.project, "vectors", connection).await?;
    Ok(world)
}

#[tokio::test]
async fn an_embeddings_call_is_passed_through_and_metered() -> anyhow::Result<()> {
    let world = world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let body = json!({ "model": "vectors", "input": ["red door", "blue"], "encoding_format": "base64" });
    let answer = edge.post(PATH, &body).send().await?;
    assert_eq!(header(&answer, "x-ragmux-model"), Some("demo-embed"));
    let answer = body_of(answer, 200).await;
    assert_eq!((&answer["model"], answer["data"].as_array().unwrap().len()), (&json!("vectors"), 2));
    assert!(answer["data"][0]["embedding"].is_string());
    let seen = world.upstream.log(0).calls.remove(0);
    assert_eq!(seen.body, json!({ "model": "demo-embed", "input": ["red door", "blue"], "encoding_format": "base64" }));
    let tokens = answer["usage"]["prompt_tokens"].as_i64().unwrap();
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.operation.as_str(), logged.route.as_deref()), ("embeddings", Some("vectors")));
    assert_eq!((logged.charged_tokens, logged.charged_cost, logged.state.as_str()), (tokens, tokens * 1000, "final"));
    edge.stop().await
}

#[tokio::test]
async fn an_embeddings_answer_is_the_providers_bytes_but_for_the_models_name() -> anyhow::Result<()> {
    let world = world().await?;
    let edge = world.edge().await?;
    let body = r#"{ "object":"list", "data":[{"embedding":[0.10,-2.50e-8],"index":0}],"model":"demo-embed"}"#;
    let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: body.to_owned() };
    let behaviour = Behaviour { raw: Some(raw), ..Behaviour::default() };
    world.upstream.script(Script { path: PATH.to_owned(), queue: vec![behaviour], ..Script::default() });
    let answer = edge.post(PATH, &json!({ "model": "vectors", "input": [1, 2, 3] })).send().await?.text().await?;
    assert_eq!(answer, body.replace("demo-embed", "vectors"));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_tokens, logged.state.as_str()), (3, "estimated"));
    edge.stop().await
}

#[tokio::test]
async fn what_is_wrong_with_an_embeddings_call_is_told() -> anyhow::Result<()> {
    let world = world().await?;
    let edge = world.edge().await?;
    let told = body_of(edge.post(PATH, &json!({ "model": "vectors" })).send().await?, 400).await;
    assert_eq!((&told["error"]["message"], &told["error"]["param"]), (&json!("input is required"), &json!("input")));
    let error = Behaviour { error: Some(ScriptedError::status(500)), ..Behaviour::default() };
    world.upstream.script(Script { path: PATH.to_owned(), queue: vec![error], ..Script::default() });
    let told = error_of(edge.post(PATH, &json!({ "model": "vectors", "input": "a" })).send().await?).await;
    assert_eq!(told, (502, "upstream_error".to_owned(), json!("upstream_failed")));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_requests, logged.charged_tokens), (0, 0));
    edge.stop().await
}
