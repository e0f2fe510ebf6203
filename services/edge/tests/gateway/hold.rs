//! What is reserved for a call before anything is sent: all that it can be charged for.

use serde_json::{Value, json};
use testkit::until;
use tokens::{Family, count_messages};
use upstream::{Behaviour, Figures, Wait};

use crate::passages;
use crate::world::{Edge, World, answer_tokens, body_of, turn};

const RULES: &str = "Answer in one sentence.";
const CONTEXT: i64 = 500;
const MOST_OUTPUT: i64 = 70;

fn prompt_tokens(text: &str) -> i64 {
    i64::try_from(count_messages(Family::Estimated, [text, RULES])).unwrap()
}

/// What a call holds while its provider works, in tokens and nano-USD.
async fn held(world: &World, edge: &Edge, text: &str, members: Value) -> anyhow::Result<(i64, i64)> {
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let mut body = json!({ "messages": [{ "role": "user", "content": text }] });
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let running = tokio::spawn(edge.chat(body).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let id = world.database.open_ids(world.project).await?.remove(0);
    let call = body_of(edge.get(&format!("/v1/usage/{id}")).send().await?, 200).await;
    world.upstream.release(None);
    body_of(running.await??, 200).await;
    until("it is settled", async || Ok(world.database.open_ids(world.project).await?.is_empty())).await?;
    let cost = call["held"]["cost_usd"].as_f64().unwrap() * 1e9;
    Ok((call["held"]["tokens"].as_i64().unwrap(), cost.round() as i64))
}

#[tokio::test]
async fn a_hold_covers_prompt_rules_passages_query_and_every_choice_at_the_dearest_price() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    let database = &world.database;
    database.change_project(world.project, &format!("system_prompt = '{RULES}', tokens_per_day = 100000")).await?;
    database.change_route(world.route, &format!("context_tokens = {CONTEXT}, max_output = {MOST_OUTPUT}")).await?;
    let dear = database.insert_connection("dear", &world.upstream.base_url(), "dear-chat").await?;
    database
        .execute(format!(
            "INSERT INTO route_targets (route_id, group_number, connection_id) VALUES ({}, 1, {})",
            world.route.0, dear.0
        ))
        .await?;
    // Nano-USD a token: 1,000 in and 2,000 out; 500 in, 3,000 written to its cache and 1,500 out; 100 for embeddings.
    database.insert_price("real-chat", 1_000_000_000, 2_000_000_000).await?;
    database.insert_price("dear-chat", 500_000_000, 1_500_000_000).await?;
    database.execute("UPDATE model_prices SET cache_write = 3000000000 WHERE model_pattern = 'dear-chat'").await?;
    database.insert_price("demo-embed", 100_000_000, 0).await?;
    let edge = world.edge().await?;

    let question = "How long does the warranty of it last?";
    let query = answer_tokens(question);
    let prompt = prompt_tokens(question) + CONTEXT + query;
    // The larger of two bounds, for each of two choices.
    let members = json!({ "max_tokens": 30, "max_completion_tokens": 40, "n": 2 });
    let hold = held(&world, &edge, question, members).await?;
    assert_eq!(hold, (prompt + 80, prompt * 3000 + 80 * 2000 + query * 100));

    // No passages where nothing is searched for, and the route's bound where the client has none.
    let prompt = prompt_tokens("Hello!");
    let hold = held(&world, &edge, "Hello!", json!({})).await?;
    assert_eq!(hold, (prompt + MOST_OUTPUT, prompt * 3000 + MOST_OUTPUT * 2000));
    edge.stop().await
}

#[tokio::test]
async fn a_model_without_a_price_holds_and_costs_nothing_and_is_said_to_have_none() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 100000").await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let running = tokio::spawn(edge.chat(json!({ "max_tokens": 40 })).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let id = world.database.open_ids(world.project).await?.remove(0);
    let call = async || anyhow::Ok(body_of(edge.get(&format!("/v1/usage/{id}")).send().await?, 200).await);
    assert_eq!(call().await?["held"]["cost_usd"], json!(0));
    world.upstream.release(None);
    assert_eq!(running.await??.status(), 200);
    world.the_logged_call().await?;
    let call = call().await?;
    assert_eq!((&call["cost_source"], &call["charged"]["cost_usd"]), (&json!("none"), &json!(0)));
    assert!(call["charged"]["tokens"].as_i64().unwrap() > 0);
    edge.stop().await
}

#[tokio::test]
async fn a_call_is_charged_at_the_prices_of_its_admission() -> anyhow::Result<()> {
    let world = World::with("cost_per_day = 1000000000").await?;
    world.database.insert_price("real-chat", 1_000_000, 2_000_000).await?;
    let edge = world.edge().await?;
    let figures = Figures { prompt_tokens: 5, completion_tokens: 3, ..Figures::default() };
    world.next_chat(Behaviour { hold: true, figures: Some(figures), ..Behaviour::default() });
    let running = tokio::spawn(edge.chat(turn(json!({ "max_tokens": 64 }))).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;

    world.database.execute("UPDATE model_prices SET input = 100000000, output = 100000000").await?;
    world.database.execute("SELECT append_config_change('price', 0)").await?;
    until("the edge has heard of it", async || {
        world.next_chat(Behaviour { figures: Some(figures), ..Behaviour::default() });
        body_of(edge.chat(turn(json!({ "max_tokens": 64 }))).send().await?, 200).await;
        let calls = world.database.logged_calls(world.project).await?;
        Ok(calls.iter().any(|call| call.charged_cost == 8 * 100))
    })
    .await?;
    world.upstream.release(None);
    body_of(running.await??, 200).await;
    until("it is settled", async || Ok(world.database.open_ids(world.project).await?.is_empty())).await?;
    // The oldest one.
    assert_eq!(world.database.logged_calls(world.project).await?[0].charged_cost, 5 + 3 * 2);
    edge.stop().await
}
