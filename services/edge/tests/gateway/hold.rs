//! What is reserved for a call before anything is sent: all that it can be charged for.

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use testkit::until;
use tokens::{Family, ImageTokens, count_messages};
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
    let mut body = json!({ "messages": [{ "role": "user", "content": text }] });
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    held_by(world, edge, edge.chat(body)).await
}

/// The same for any request.
pub(crate) async fn held_by(world: &World, edge: &Edge, request: RequestBuilder) -> anyhow::Result<(i64, i64)> {
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let running = tokio::spawn(request.send());
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
    assert_eq!(hold, (prompt + 80, (prompt - query) * 3000 + 80 * 2000 + query * 100));

    // No passages where nothing is searched for, and the route's bound where the client has none.
    let prompt = prompt_tokens("Hello!");
    let hold = held(&world, &edge, "Hello!", json!({})).await?;
    assert_eq!(hold, (prompt + MOST_OUTPUT, prompt * 3000 + MOST_OUTPUT * 2000));
    edge.stop().await
}

/// The tokens of a prompt of these texts.
fn tokens_of(texts: &[&str]) -> i64 {
    i64::try_from(count_messages(Family::Estimated, texts.iter().copied())).unwrap()
}

#[tokio::test]
async fn whatever_may_become_prompt_is_held() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 10000000").await?;
    let edge = world.edge().await?;
    let words = "so many words that somebody pays for ".repeat(20);
    let own = json!({ "name": "f", "description": words });
    for (member, value) in [
        ("functions", json!([own])),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": own } })),
        ("tools", json!([{ "type": "function", "function": own }])),
        ("tool_choice", json!({ "type": "function", "function": own })),
        ("prediction", json!({ "type": "content", "content": words })),
        ("web_search_options", own.clone()),
        ("guided_json", own.clone()),
        ("documents", json!([words])),
    ] {
        let hold = held(&world, &edge, "hi", json!({ "max_tokens": 10, member: value })).await?;
        assert_eq!(hold.0, tokens_of(&["hi", &value.to_string()]) + 10, "{member}");
    }
    for member in ["name", "reasoning_content", "reasoning", "thinking", "refusal", "unheard_of"] {
        let message = json!({ "role": "assistant", "content": "hi", member: words });
        let hold = held(&world, &edge, "", json!({ "max_tokens": 10, "messages": [message] })).await?;
        assert_eq!(hold.0, tokens_of(&["hi", &words]) + 10, "{member}");
    }
    for member in ["function_call", "audio"] {
        let message = json!({ "role": "assistant", "content": "hi", member: own });
        let hold = held(&world, &edge, "", json!({ "max_tokens": 10, "messages": [message] })).await?;
        assert_eq!(hold.0, tokens_of(&["hi", &own.to_string()]) + 10, "{member}");
    }
    for (kind, member) in
        [("refusal", "refusal"), ("input_text", "text"), ("thinking", "thinking"), ("unheard_of", "words")]
    {
        let message = json!({ "role": "user", "content": [{ "type": kind, member: words }] });
        let hold = held(&world, &edge, "", json!({ "max_tokens": 10, "messages": [message] })).await?;
        assert_eq!(hold.0, tokens_of(&["", &words]) + 10, "{kind}");
    }
    edge.stop().await
}

#[tokio::test]
async fn pictures_are_held_by_their_number_and_not_by_their_bytes() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 10000000").await?;
    let edge = world.edge().await?;
    let url = format!("data:image/png;base64,{}", "iVBORw0KGgo".repeat(5_000));
    let look = json!({ "type": "image_url", "image_url": { "url": url } });
    let glance = json!({ "type": "image_url", "image_url": { "url": url, "detail": "low" } });
    let ImageTokens { close, at_a_glance } = ImageTokens::of("real-chat");
    for (parts, images) in [(json!([look]), close), (json!([glance]), at_a_glance), (json!([look, glance]), 1_530)] {
        let message = json!({ "role": "user", "content": parts });
        let hold = held(&world, &edge, "", json!({ "max_tokens": 10, "messages": [message] })).await?;
        assert_eq!(hold.0, tokens_of(&[""]) + i64::try_from(images)? + 10);
    }
    edge.stop().await
}

#[tokio::test]
async fn whatever_may_become_prompt_of_a_message_is_held() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 10000000").await?;
    let edge = world.edge().await?;
    let words = "so many words that somebody pays for ".repeat(20);
    let source = json!({ "type": "text", "media_type": "text/plain", "data": words });
    let own = json!({ "x": words });
    for (block, role, texts) in [
        (json!({ "type": "thinking", "thinking": words, "signature": "" }), "assistant", vec![words.clone()]),
        (json!({ "type": "document", "source": source }), "user", vec![words.clone()]),
        (
            json!({ "type": "tool_use", "id": "a", "name": "f", "input": own }),
            "assistant",
            vec!["a".to_owned(), "f".to_owned(), own.to_string()],
        ),
    ] {
        let text = json!({ "type": "text", "text": "hi" });
        let message = json!({ "role": role, "content": [text, block] });
        let body = json!({ "model": "fast", "max_tokens": 10, "system": "be kind", "messages": [message] });
        let hold = held_by(&world, &edge, edge.post("/v1/messages", &body)).await?;
        let mut expected = vec!["be kind", "hi"];
        expected.extend(texts.iter().map(String::as_str));
        assert!((0..=1).contains(&(hold.0 - tokens_of(&expected) - 10)), "{} for {block}", hold.0);
    }
    edge.stop().await
}

#[tokio::test]
async fn a_call_without_a_bound_holds_what_its_model_can_write() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 10000000").await?;
    let known = world.database.insert_connection("known", &world.upstream.base_url(), "gpt-4.1-nano").await?;
    let route = world.database.insert_route(world.project, "known", known).await?;
    let edge = world.edge().await?;
    let prompt = i64::try_from(count_messages(Family::O200k, ["hi"]))?;
    for unbounded in [json!({ "model": "known" }), json!({ "model": "known", "n_predict": -1, "max_tokens": 10 })] {
        assert_eq!(held(&world, &edge, "hi", unbounded).await?.0, prompt + 32_768);
    }
    assert_eq!(held(&world, &edge, "hi", json!({ "model": "known", "n": 2 })).await?.0, prompt + 65_536);
    assert_eq!(held(&world, &edge, "hi", json!({})).await?.0, tokens_of(&["hi"]) + 4_096);
    // A route's bound beyond what the model can write is none.
    for (bound, held_output) in [(50_000, 32_768), (100, 100)] {
        world.database.change_route(route, &format!("max_output = {bound}")).await?;
        until("the edge has heard of it", async || {
            Ok(held(&world, &edge, "hi", json!({ "model": "known" })).await?.0 == prompt + held_output)
        })
        .await?;
    }
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
