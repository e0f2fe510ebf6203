//! Limits and budgets as a client meets them.

use reqwest::Response;
use serde_json::{Value, json};
use testkit::{early_in_a_minute, until};
use upstream::{Behaviour, Figures, Wait};

use crate::passages;
use crate::world::{CHAT, Edge, World, body_of, error_of, header, turn};

fn number(answer: &Response, name: &str) -> i64 {
    header(answer, name).unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

#[tokio::test]
async fn the_third_call_of_a_minute_is_denied_on_every_edge_streamed_or_not() -> anyhow::Result<()> {
    let world = World::with("requests_per_minute = 2").await?;
    let (first, second) = (world.edge().await?, world.edge().await?);
    early_in_a_minute().await?;
    let answer = first.chat(json!({})).send().await?;
    assert_eq!(answer.status(), 200);
    assert_eq!(
        (number(&answer, "x-ratelimit-limit-requests"), number(&answer, "x-ratelimit-remaining-requests")),
        (2, 1)
    );
    assert!(header(&answer, "x-ratelimit-reset-requests").unwrap().ends_with('s'));
    assert_eq!(second.chat(json!({ "stream": true })).send().await?.status(), 200);
    for edge in [&first, &second] {
        for stream in [false, true] {
            let answer = edge.chat(json!({ "stream": stream })).send().await?;
            assert_eq!(header(&answer, "content-type"), Some("application/json"));
            assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), 0);
            assert!((1..=60).contains(&number(&answer, "retry-after")));
            assert_eq!(header(&answer, "x-should-retry"), None, "the next minute is near");
            let body = body_of(answer, 429).await;
            let error = &body["error"];
            assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_exceeded"), &json!("rate_limit_rpm")));
            assert_eq!((&error["scope"], &error["cap"]), (&json!("project"), &json!(2)));
            assert_eq!(error["used"].as_i64().unwrap() + error["held"].as_i64().unwrap(), 2);
            assert!(error["resets_at"].as_str().unwrap().ends_with(":00Z"), "{error}");
        }
    }
    assert_eq!(world.upstream.counters().requests, 2);
    first.stop().await?;
    second.stop().await
}

#[tokio::test]
async fn a_client_that_calls_one_after_the_other_is_never_denied_for_the_call_before() -> anyhow::Result<()> {
    let world = World::with("concurrent_requests = 1").await?;
    let edges = [world.edge().await?, world.edge().await?];
    for call in 0..80 {
        // Now and then the other edge, whole or streamed.
        let edge = &edges[call / 3 % 2];
        let mut answer = edge.chat(json!({ "stream": call % 2 == 1 })).send().await?;
        assert_eq!(answer.status(), 200, "call {call}");
        // The last event is the end for most clients, whether or not the body has ended.
        let mut text = String::new();
        while !text.contains("[DONE]")
            && let Some(chunk) = answer.chunk().await?
        {
            text.push_str(std::str::from_utf8(&chunk)?);
        }
    }
    for edge in edges {
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_spent_day_is_a_quota_that_is_not_worth_retrying() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 500").await?;
    let edge = world.edge().await?;
    let figures = Figures { prompt_tokens: 12, completion_tokens: 450, ..Figures::default() };
    world.next_chat(Behaviour { figures: Some(figures), ..Behaviour::default() });
    let answer = edge.chat(json!({ "max_tokens": 460 })).send().await?;
    assert_eq!(answer.status(), 200);
    // What is left after the hold.
    assert!((0..40).contains(&number(&answer, "x-ragmux-budget-daily-remaining")));
    world.the_logged_call().await?;
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!(header(&answer, "x-should-retry"), Some("false"));
    assert!(number(&answer, "retry-after") <= 86_400);
    assert_eq!(number(&answer, "x-ragmux-budget-daily-remaining"), 38);
    let body = body_of(answer, 429).await;
    let error = &body["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("insufficient_quota"), &json!("budget_daily")));
    assert_eq!((&error["cap"], &error["used"], &error["held"]), (&json!(500), &json!(462), &json!(0)));
    // A client that needs less than the usual minimum may have what is left.
    assert_eq!(edge.chat(json!({ "max_tokens": 5 })).send().await?.status(), 200);
    edge.stop().await
}

#[tokio::test]
async fn calls_at_once_are_counted_while_they_run() -> anyhow::Result<()> {
    let world = World::with("concurrent_requests = 1").await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let running = tokio::spawn(edge.chat(json!({})).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!(header(&answer, "retry-after"), Some("1"));
    assert_eq!(error_of(answer).await, (429, "rate_limit_exceeded".to_owned(), json!("concurrency_limit")));
    world.upstream.release(None);
    assert_eq!(running.await??.status(), 200);
    until("the slot is free", async || Ok(edge.chat(json!({})).send().await?.status() == 200)).await?;
    edge.stop().await
}

#[tokio::test]
async fn a_cost_budget_needs_prices_and_shows_dollars() -> anyhow::Result<()> {
    // One US dollar a day.
    let world = World::with("cost_per_day = 1000000000").await?;
    let edge = world.edge().await?;
    let refused = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!(refused, (400, "invalid_request_error".to_owned(), json!("model_unpriced")));
    // A dollar for a thousand output tokens.
    world.database.insert_price("real-chat", 0, 1_000_000_000_000).await?;
    let served = async |members: Value| anyhow::Ok(edge.chat(members).send().await?.status() == 200);
    until("the price is known", async || served(json!({ "max_tokens": 1 })).await).await?;
    let figures = Figures { prompt_tokens: 12, completion_tokens: 990, ..Figures::default() };
    world.next_chat(Behaviour { figures: Some(figures), ..Behaviour::default() });
    assert!(served(json!({ "max_tokens": 990 })).await?);
    until("it is settled", async || Ok(world.database.tier_totals(world.project).await?.open_rows == 0)).await?;
    let body = body_of(edge.chat(json!({ "max_tokens": 500 })).send().await?, 429).await;
    let error = &body["error"];
    assert_eq!((&error["code"], &error["cap"]), (&json!("cost_daily"), &json!(1)));
    assert!(error["used"].as_f64().unwrap() > 0.99, "{error}");
    world.database.change_project(world.project, "cost_per_day = 0").await?;
    until("the budget is gone", async || served(json!({ "max_tokens": 500 })).await).await?;
    edge.stop().await
}

#[tokio::test]
async fn a_keys_own_cost_budget_needs_prices_on_every_route_too() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    let vectors = world.database.insert_connection("vectors", &world.upstream.base_url(), "demo-embed-2").await?;
    world.database.insert_route(world.project, "vectors", vectors).await?;
    let user = world.database.insert_user("ann").await?;
    let scopes = ["chat", "embeddings", "retrieve"];
    let (id, key) = world.database.insert_user_key(user, "k", &scopes, &[world.project]).await?;
    world.database.change_key(id, "cost_per_month = 1000000000").await?;
    let url = world.database.url(testkit::RoleName::Edge).expose().to_owned();
    let (edge, own) = (Edge::start(&url, key.secret().expose(), &[]).await?, world.edge().await?);
    edge.until_ready().await?;
    let greeting = json!({ "messages": [{ "role": "user", "content": "Hello!" }] });
    let requests = [
        (CHAT, turn(json!({})), "fast"),
        (CHAT, turn(json!({ "stream": true })), "fast"),
        ("/v1/embeddings", json!({ "model": "vectors", "input": "a" }), "vectors"),
        ("/v1/retrieve", json!({ "query": "warranty" }), "demo-embed"),
    ];
    let refused = async |path: &str, body: &Value, model: &str| {
        let error = body_of(edge.post(path, body).send().await?, 400).await["error"].clone();
        assert_eq!((&error["code"], &error["param"]), (&json!("model_unpriced"), &json!("model")), "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(&format!("the model {model} has no price")), "{error}");
        anyhow::Ok(())
    };
    for (path, body, model) in &requests {
        refused(path, body, model).await?;
        // Where no money is counted there is nothing to refuse.
        assert_eq!(own.post(path, body).send().await?.status(), 200, "{path}");
    }
    // A price of the model that answers is no price of the one that embeds the question.
    world.database.insert_price("real-chat", 1, 1).await?;
    until("the price is known", async || Ok(edge.chat(greeting.clone()).send().await?.status() == 200)).await?;
    refused(CHAT, &turn(json!({})), "demo-embed").await?;
    assert_eq!(world.logged(5).await?.len(), 5, "what is refused leaves no trace");
    world.database.change_project(world.project, "allow_unpriced = true").await?;
    for (path, body, _) in &requests {
        until("all models are allowed", async || Ok(edge.post(path, body).send().await?.status() == 200)).await?;
    }
    edge.stop().await?;
    own.stop().await
}

#[tokio::test]
async fn a_persons_key_has_limits_of_its_own() -> anyhow::Result<()> {
    let world = World::with("requests_per_minute = 100").await?;
    let user = world.database.insert_user("ann").await?;
    let (id, key) = world.database.insert_user_key(user, "k", &["chat"], &[world.project]).await?;
    world.database.change_key(id, "requests_per_minute = 1").await?;
    let url = world.database.url(testkit::RoleName::Edge).expose().to_owned();
    let edge = Edge::start(&url, key.secret().expose(), &[]).await?;
    edge.until_ready().await?;
    early_in_a_minute().await?;
    assert_eq!(edge.chat(json!({})).send().await?.status(), 200);
    let body = body_of(edge.chat(json!({})).send().await?, 429).await;
    assert_eq!((&body["error"]["scope"], &body["error"]["cap"]), (&json!("key"), &json!(1)));
    edge.stop().await
}

#[tokio::test]
async fn a_revoked_key_admits_nothing_even_where_it_is_still_known() -> anyhow::Result<()> {
    let world = World::with("requests_per_minute = 1000").await?;
    let edge = world.edge().await?;
    assert_eq!(edge.chat(json!({})).send().await?.status(), 200);
    world.database.change_key(world.key_id, "revoked_at = clock_timestamp()").await?;
    let told = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!(told, (401, "invalid_api_key".to_owned(), json!("key_revoked")));
    edge.stop().await
}

#[tokio::test]
async fn features_with_a_price_of_their_own_need_no_budget_of_money() -> anyhow::Result<()> {
    let world = World::with("cost_per_day = 1000000000").await?;
    world.database.insert_price("real-chat", 1_000_000, 1_000_000).await?;
    let edge = world.edge().await?;
    let refused = async |path: &str, members: &Value, param: &str| {
        let body = if path == CHAT { turn(members.clone()) } else { members.clone() };
        let told = body_of(edge.post(path, &body).send().await?, 400).await;
        let error = &told["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("unpriced_feature"), &json!(param)), "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(param));
        anyhow::Ok(())
    };
    let search = json!({ "stream": true, "tools": [{ "type": "function", "function": {} }, { "type": "web_search" }] });
    refused(CHAT, &search, "tools[1]").await?;
    refused(CHAT, &json!({ "tools": { "type": "web_search" } }), "tools").await?;
    let file = json!({ "messages": [{ "role": "user", "content": [{ "type": "file", "file": { "file_id": "f" } }] }] });
    refused(CHAT, &file, "messages[0].content[0]").await?;
    refused(CHAT, &json!({ "service_tier": "priority" }), "service_tier").await?;
    refused("/v1/embeddings", &json!({ "model": "fast", "input": "a", "models": ["b"] }), "models").await?;
    assert_eq!(edge.chat(json!({ "service_tier": "auto" })).send().await?.status(), 200);
    assert_eq!(world.upstream.counters().requests, 1);
    assert_eq!(world.logged(1).await?.len(), 1, "a refusal leaves no trace");
    world.database.change_route(world.route, "allowed_features = '{web_search}'").await?;
    let search_is = async |status: u16| Ok(edge.chat(search.clone()).send().await?.status() == status);
    until("the route allows the search", async || search_is(200).await).await?;
    refused(CHAT, &json!({ "service_tier": "priority" }), "service_tier").await?;
    world.database.change_route(world.route, "allowed_features = '{}'").await?;
    until("and no longer", async || search_is(400).await).await?;
    world.database.change_project(world.project, "cost_per_day = 0, tokens_per_day = 1000000").await?;
    until("no money is counted", async || search_is(200).await).await?;

    // A person's key may have a budget where the project has none.
    let user = world.database.insert_user("ann").await?;
    let (id, key) = world.database.insert_user_key(user, "k", &["chat"], &[world.project]).await?;
    let send = async || {
        let request = edge.bare(reqwest::Method::POST, CHAT).bearer_auth(key.secret().expose());
        anyhow::Ok(request.json(&turn(search.clone())).send().await?)
    };
    assert_eq!(send().await?.status(), 200);
    world.database.change_key(id, "cost_per_month = 1000000000").await?;
    until("the key counts money", async || Ok(send().await?.status() == 400)).await?;
    assert_eq!(error_of(send().await?).await.2, json!("unpriced_feature"));
    edge.stop().await
}
