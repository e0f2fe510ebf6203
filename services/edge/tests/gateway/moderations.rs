//! Moderations, passed through.

use serde_json::json;
use testkit::until;
use upstream::Script;

use crate::script::failing;
use crate::world::{World, body_of, error_of, header};

const PATH: &str = "/v1/moderations";

async fn world() -> anyhow::Result<World> {
    let world = World::new().await?;
    let connection = world.database.insert_connection("judge", &world.upstream.base_url(), "real-moderation").await?;
    world.database.insert_route(world.project, "moderation", connection).await?;
    Ok(world)
}

#[tokio::test]
async fn a_moderation_is_passed_through_and_counts_as_a_request() -> anyhow::Result<()> {
    let world = world().await?;
    let edge = world.edge().await?;
    let body = json!({ "model": "moderation", "input": ["a kitten", "violence"], "extra": 1 });
    let answer = edge.post(PATH, &body).send().await?;
    assert_eq!(
        (header(&answer, "x-ragmux-model"), header(&answer, "x-ragmux-attempts")),
        (Some("real-moderation"), Some("1"))
    );
    let answer = body_of(answer, 200).await;
    assert_eq!((&answer["model"], &answer["results"][1]["flagged"]), (&json!("moderation"), &json!(true)));
    let seen = world.upstream.log(0).calls.remove(0);
    assert_eq!(seen.body, json!({ "model": "real-moderation", "input": ["a kitten", "violence"], "extra": 1 }));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.operation.as_str(), logged.charged_requests, logged.charged_cost), ("moderations", 1, 0));
    assert!(logged.charged_tokens > 2);
    edge.stop().await
}

#[tokio::test]
async fn openais_moderations_are_free_and_others_need_a_price() -> anyhow::Result<()> {
    let world = world().await?;
    world.database.change_project(world.project, "cost_per_day = 1").await?;
    let edge = world.edge().await?;
    let ask = || edge.post(PATH, &json!({ "model": "moderation", "input": "a" })).send();
    assert_eq!(error_of(ask().await?).await.2, "model_unpriced");
    let connection =
        world.database.insert_connection("openai", &world.upstream.base_url(), "omni-moderation-latest").await?;
    world.database.change_connection(connection, "provider_type = 'openai'").await?;
    world.database.insert_route(world.project, "free", connection).await?;
    until("there is the new route", async || {
        Ok(edge.post(PATH, &json!({ "model": "free", "input": "a" })).send().await?.status() == 200)
    })
    .await?;
    let logged = world.logged(1).await?;
    assert_eq!((logged[0].model.as_deref(), logged[0].charged_cost), (Some("omni-moderation-latest"), 0));
    edge.stop().await
}

#[tokio::test]
async fn a_moderation_goes_only_where_it_is_understood() -> anyhow::Result<()> {
    let world = world().await?;
    let other = world.database.insert_connection("other", &world.upstream.base_url(), "claude").await?;
    world.database.change_connection(other, "provider_type = 'anthropic'").await?;
    let route = world.database.insert_route(world.project, "foreign", other).await?;
    let edge = world.edge().await?;
    let told = body_of(edge.post(PATH, &json!({ "model": "foreign", "input": "a" })).send().await?, 400).await;
    assert_eq!(told["error"]["code"], "unsupported_for_model");
    assert!(told["error"]["message"].as_str().unwrap().contains("foreign"));
    let told = body_of(edge.post(PATH, &json!({ "model": "foreign" })).send().await?, 400).await;
    assert_eq!((&told["error"]["message"], &told["error"]["param"]), (&json!("input is required"), &json!("input")));
    assert!(world.upstream.log(0).calls.is_empty());

    // Of a route that leads elsewhere too, what understands it is asked.
    world.database.add_target(route, world.connection, 1, 1).await?;
    until("the route leads to both", async || {
        Ok(edge.post(PATH, &json!({ "model": "foreign", "input": "a" })).send().await?.status() == 200)
    })
    .await?;
    let error = failing(400);
    world.upstream.script(Script { path: PATH.to_owned(), queue: vec![error], ..Script::default() });
    assert_eq!(edge.post(PATH, &json!({ "model": "foreign", "input": "a" })).send().await?.status(), 400);
    let logged = world.logged(2).await?;
    assert_eq!(
        (logged[1].charged_requests, logged[1].charged_tokens, logged[1].model.as_deref()),
        (1, 0, Some("real-chat"))
    );
    edge.stop().await
}
