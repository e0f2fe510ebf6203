//! Embeddings, passed through.

use serde_json::json;
use tokio::net::TcpListener;
use upstream::{Behaviour, Options, Raw, ReportUsage, Script};

use crate::script::failing;
use crate::world::{World, answer_tokens, body_of, error_of, header};

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
    let error = failing(500);
    world.upstream.script(Script { path: PATH.to_owned(), queue: vec![error], ..Script::default() });
    let told = error_of(edge.post(PATH, &json!({ "model": "vectors", "input": "a" })).send().await?).await;
    assert_eq!(told, (502, "upstream_error".to_owned(), json!("upstream_failed")));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_requests, logged.charged_tokens), (0, 0));
    edge.stop().await
}

/// More inputs than go into one part, and the tokens of each by our count.
fn many() -> (serde_json::Value, i64) {
    (json!({ "model": "vectors", "input": vec!["red door"; 2050] }), answer_tokens("red door"))
}

fn silent() -> Behaviour {
    Behaviour { usage: ReportUsage::Never, ..Behaviour::default() }
}

#[tokio::test]
async fn parts_that_were_answered_are_charged_although_another_fails_and_nobody_reports() -> anyhow::Result<()> {
    let world = world().await?;
    world.database.insert_price("demo-embed", 1_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let (body, each) = many();
    let queue = vec![silent(), failing(400)];
    world.upstream.script(Script { path: PATH.to_owned(), queue, ..Script::default() });
    assert_eq!(error_of(edge.post(PATH, &body).send().await?).await.0, 400);
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_tokens, logged.charged_cost), (2048 * each, 2048 * each * 1000), "{logged:?}");
    assert_eq!((logged.status, logged.state.as_str(), logged.charged_requests), (400, "estimated", 1));

    // What is reported counts for its part alone.
    let queue = vec![silent(), Behaviour::default()];
    world.upstream.script(Script { path: PATH.to_owned(), queue, ..Script::default() });
    assert_eq!(edge.post(PATH, &body).send().await?.status(), 200);
    let logged = &world.logged(2).await?[1];
    let reported = logged.charged_tokens - 2048 * each;
    assert!(reported > 0 && reported < 2048, "{logged:?}");
    assert_eq!((logged.prompt_tokens, logged.state.as_str()), (Some(logged.charged_tokens), "estimated"));
    edge.stop().await
}

#[tokio::test]
async fn whoever_answered_a_part_is_paid_for_it_at_its_price() -> anyhow::Result<()> {
    let world = world().await?;
    let spare = upstream::serve(TcpListener::bind("127.0.0.1:0").await?, Options::scripted())?;
    let database = &world.database;
    let first = database.insert_connection("first", &world.upstream.base_url(), "demo-embed").await?;
    let other = database.insert_connection("other", &spare.base_url(), "demo-embed").await?;
    database.change_connection(other, "provider_type = 'openrouter'").await?;
    let route = database.insert_route(world.project, "both", first).await?;
    database.add_target(route, other, 1, 1).await?;
    database.insert_price_of("custom_openai", "demo-embed", 1_000_000_000, 0).await?;
    database.insert_price_of("openrouter", "demo-embed", 7_000_000_000, 0).await?;
    let edge = world.edge().await?;
    let (mut body, each) = many();
    body["model"] = json!("both");
    let queue = vec![silent(), failing(401)];
    world.upstream.script(Script { path: PATH.to_owned(), queue, ..Script::default() });
    spare.script(Script { path: PATH.to_owned(), default: Some(silent()), ..Script::default() });
    let answer = edge.post(PATH, &body).send().await?;
    assert_eq!(header(&answer, "x-ragmux-connection"), Some("other"));
    assert_eq!(body_of(answer, 200).await["data"].as_array().unwrap().len(), 2050);
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.charged_tokens, logged.connection_id), (2050 * each, Some(other.0)), "{logged:?}");
    assert_eq!((logged.charged_cost, logged.state.as_str()), ((2048 + 2 * 7) * each * 1000, "estimated"));
    edge.stop().await
}
