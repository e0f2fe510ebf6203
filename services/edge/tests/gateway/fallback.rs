//! Calls that one target of a route does not answer, and another does.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::ConnectionId;
use futures::StreamExt;
use serde_json::json;
use testkit::until;
use tokio::net::TcpListener;
use upstream::{Behaviour, Handle, Options, Script};

use crate::script::failing;
use crate::world::{Edge, World, body_of, error_of, header};

/// A world whose route leads to a spare provider as well, with the model `spare-chat` at a price of its own.
struct Pair {
    world: World,
    spare: Handle,
    spare_connection: ConnectionId,
}

impl Pair {
    /// The spare one stands in a group of its own, or beside the other one.
    async fn new(group: i16, weight: i32) -> anyhow::Result<Self> {
        let world = World::new().await?;
        let spare = upstream::serve(TcpListener::bind("127.0.0.1:0").await?, Options::scripted())?;
        let spare_connection = world.database.insert_connection("spare", &spare.base_url(), "spare-chat").await?;
        world.database.add_target(world.route, spare_connection, group, weight).await?;
        world.database.insert_price("real-chat", 1_000_000_000, 1_000_000_000).await?;
        world.database.insert_price("spare-chat", 7_000_000_000, 7_000_000_000).await?;
        Ok(Self { world, spare, spare_connection })
    }

    /// How many calls each has seen.
    fn seen(&self) -> (u64, u64) {
        (self.world.upstream.counters().requests, self.spare.counters().requests)
    }
}

/// Attempts, connection and model that an answer names.
fn named(answer: &reqwest::Response) -> (Option<&str>, Option<&str>, Option<&str>) {
    (header(answer, "x-ragmux-attempts"), header(answer, "x-ragmux-connection"), header(answer, "x-ragmux-model"))
}

#[tokio::test]
async fn the_next_group_answers_when_the_first_one_fails() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    let edge = pair.world.edge().await?;
    pair.world.every_chat(failing(503));
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!(named(&answer), (Some("3"), Some("spare"), Some("spare-chat")));
    let body = body_of(answer, 200).await;
    assert_eq!(body["model"], "fast");
    assert_eq!(pair.seen(), (2, 1), "the first one is asked twice");
    let usage = |name: &str| body["usage"][name].as_i64().unwrap();
    let tokens = usage("prompt_tokens") + usage("completion_tokens");
    let logged = pair.world.the_logged_call().await?;
    assert_eq!((logged.model.as_deref(), logged.attempts, logged.status), (Some("spare-chat"), 3, 200));
    assert_eq!((logged.charged_requests, logged.charged_tokens, logged.charged_cost), (1, tokens, tokens * 7000));
    assert_eq!(logged.connection_id, Some(pair.spare_connection.0));
    edge.stop().await
}

#[tokio::test]
async fn calls_are_shared_by_weight() -> anyhow::Result<()> {
    let pair = Pair::new(0, 3).await?;
    let edge = pair.world.edge().await?;
    let mut served = BTreeMap::<String, u64>::new();
    for _ in 0..60 {
        let answer = edge.chat(json!({})).send().await?;
        assert_eq!(header(&answer, "x-ragmux-attempts"), Some("1"));
        *served.entry(header(&answer, "x-ragmux-connection").unwrap().to_owned()).or_default() += 1;
    }
    // With three in four calls for the spare one, the odds against this are above ten thousand to one.
    let (first, spare) = (served["provider"], served["spare"]);
    assert!(first < spare && first > 0, "{served:?}");
    assert_eq!(pair.seen(), (first, spare));
    edge.stop().await
}

#[tokio::test]
async fn a_connection_that_failed_five_times_is_left_alone() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    let edge = pair.world.edge().await?;
    pair.world.every_chat(failing(500));
    for _ in 0..5 {
        assert_eq!(named(&edge.chat(json!({})).send().await?).0, Some("2"));
    }
    assert_eq!(named(&edge.chat(json!({})).send().await?), (Some("1"), Some("spare"), Some("spare-chat")));
    assert_eq!(pair.seen(), (5, 6));
    edge.stop().await
}

#[tokio::test]
async fn a_connection_that_was_repaired_is_used_at_once() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.every_chat(failing(500));
    for _ in 0..5 {
        assert_eq!(error_of(edge.chat(json!({})).send().await?).await.2, "upstream_failed");
    }
    assert_eq!(error_of(edge.chat(json!({})).send().await?).await.2, "upstream_circuit_open");
    world.every_chat(Behaviour::default());
    world.database.change_connection(world.connection, "base_url = base_url").await?;
    let works = until("it is used again", async || Ok(edge.chat(json!({})).send().await?.status() == 200));
    // Long before it would be tried again anyway.
    tokio::time::timeout(Duration::from_secs(15), works).await??;
    edge.stop().await
}

#[tokio::test]
async fn a_refused_credential_is_not_the_end_and_a_refused_request_is() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    let edge = pair.world.edge().await?;
    pair.world.next_chat(failing(401));
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!((answer.status().as_u16(), named(&answer).0), (200, Some("2")));
    assert!(answer.text().await?.ends_with("data: [DONE]\n\n"));
    pair.world.next_chat(failing(422));
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!((answer.status().as_u16(), named(&answer)), (422, (Some("1"), Some("provider"), Some("real-chat"))));
    assert_eq!(pair.seen(), (2, 1));
    edge.stop().await
}

#[tokio::test]
async fn a_long_wait_is_left_to_the_client_or_to_another_provider() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    pair.world.database.insert_route(pair.world.project, "alone", pair.world.connection).await?;
    let edge = pair.world.edge().await?;
    let mut busy = failing(429);
    busy.error.as_mut().unwrap().retry_after = Some("30".to_owned());
    pair.world.every_chat(busy);
    let answer = edge.chat(json!({ "model": "alone" })).send().await?;
    assert_eq!((header(&answer, "retry-after"), named(&answer).0), (Some("30"), Some("1")));
    assert_eq!(error_of(answer).await.0, 429);
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!((answer.status().as_u16(), named(&answer).0), (200, Some("2")));
    assert_eq!(pair.seen(), (2, 1));
    edge.stop().await
}

#[tokio::test]
async fn a_stream_that_has_begun_is_nobody_elses() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    let edge = pair.world.edge().await?;
    pair.world.next_chat(Behaviour { chunks: Some(9), cut_after_events: Some(3), ..Behaviour::default() });
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!((answer.status().as_u16(), named(&answer).0), (200, Some("1")));
    let told = answer.text().await?;
    assert!(told.contains("\"error\"") && !told.contains("[DONE]"), "{told}");
    assert_eq!(pair.seen(), (1, 0));
    edge.stop().await
}

#[tokio::test]
async fn another_providers_api_makes_no_difference_to_the_client() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    pair.world.database.change_connection(pair.spare_connection, "provider_type = 'anthropic'").await?;
    let edge = pair.world.edge().await?;
    pair.world.every_chat(failing(500));
    let told = Behaviour { content: Some("The moon is round.".to_owned()), ..Behaviour::default() };
    pair.spare.script(Script { path: "/v1/messages".to_owned(), default: Some(told), ..Script::default() });
    let answer = edge.chat(json!({ "logit_bias": { "5": 1 } })).send().await?;
    assert_eq!((named(&answer).1, header(&answer, "x-ragmux-dropped")), (Some("spare"), Some("logit_bias")));
    let body = body_of(answer, 200).await;
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("fast")));
    assert_eq!(body["choices"][0]["message"]["content"], "The moon is round.");
    let stream = edge.chat(json!({ "stream": true })).send().await?.text().await?;
    assert!(stream.contains("chat.completion.chunk") && stream.ends_with("data: [DONE]\n\n"), "{stream}");
    let messages = json!({ "model": "fast", "max_tokens": 9, "messages": [{ "role": "user", "content": "a" }] });
    let body = body_of(edge.post("/v1/messages", &messages).send().await?, 200).await;
    assert_eq!((&body["type"], &body["content"][0]["text"]), (&json!("message"), &json!("The moon is round.")));
    edge.stop().await
}

#[tokio::test]
async fn a_provider_that_was_never_asked_is_not_named() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    pair.world.database.change_connection(pair.spare_connection, "provider_type = 'anthropic'").await?;
    let edge = pair.world.edge().await?;
    pair.world.every_chat(failing(500));
    // The spare one has no form for a conversation in which nobody says anything.
    let rules = json!({ "messages": [{ "role": "system", "content": "Be brief." }] });
    let answer = edge.chat(rules).send().await?;
    assert_eq!((answer.status().as_u16(), named(&answer)), (502, (Some("1"), Some("provider"), Some("real-chat"))));
    assert_eq!(pair.seen(), (1, 0));
    let logged = pair.world.the_logged_call().await?;
    assert_eq!((logged.model.as_deref(), logged.connection_id), (Some("real-chat"), Some(pair.world.connection.0)));
    edge.stop().await
}

#[tokio::test]
async fn a_client_that_has_its_status_gets_its_answer_from_another_provider() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    let edge = pair.world.edge_with(&[("STREAM_COMMIT_AFTER", "50ms")]).await?;
    pair.world.next_chat(Behaviour { hold: true, ..failing(401) });
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!((answer.status().as_u16(), named(&answer)), (200, (None, None, None)));
    let mut events = answer.bytes_stream();
    let first = events.next().await.unwrap()?;
    assert!(first.starts_with(b":"), "{first:?}");
    assert_eq!(pair.seen(), (1, 0));
    pair.world.upstream.release(None);
    let mut rest = Vec::new();
    while let Some(bytes) = events.next().await {
        rest.extend_from_slice(&bytes?);
    }
    let rest = String::from_utf8(rest)?;
    assert!(rest.ends_with("data: [DONE]\n\n") && !rest.contains("\"error\""), "{rest}");
    let logged = pair.world.the_logged_call().await?;
    assert_eq!((logged.model.as_deref(), logged.attempts, logged.status), (Some("spare-chat"), 2, 200));
    edge.stop().await
}

#[tokio::test]
async fn a_request_whose_connection_broke_is_sent_again_where_the_route_says_so() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    let edge = pair.world.edge().await?;
    pair.world.every_chat(Behaviour { close: true, ..Behaviour::default() });
    let told = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!((told.0, told.2, pair.seen()), (502, json!("upstream_unreachable"), (1, 0)));
    pair.world.database.change_route(pair.world.route, "replay_timeouts = true").await?;
    until("the route replays", async || Ok(edge.chat(json!({})).send().await?.status() == 200)).await?;
    assert!(pair.seen().1 > 0);
    edge.stop().await
}

async fn embed(edge: &Edge) -> anyhow::Result<reqwest::Response> {
    Ok(edge.post("/v1/embeddings", &json!({ "model": "vectors", "input": "a" })).send().await?)
}

#[tokio::test]
async fn only_the_same_model_embeds_for_another() -> anyhow::Result<()> {
    let pair = Pair::new(1, 1).await?;
    let database = &pair.world.database;
    let first = database.insert_connection("embed", &pair.world.upstream.base_url(), "demo-embed").await?;
    let other = database.insert_connection("other", &pair.spare.base_url(), "other-embed").await?;
    let route = database.insert_route(pair.world.project, "vectors", first).await?;
    database.add_target(route, other, 1, 1).await?;
    let edge = pair.world.edge().await?;
    let path = "/v1/embeddings".to_owned();
    pair.world.upstream.script(Script { path, default: Some(failing(401)), ..Script::default() });
    assert_eq!(error_of(embed(&edge).await?).await.2, "upstream_auth");
    assert_eq!(pair.seen(), (1, 0));
    let same = database.insert_connection("same", &pair.spare.base_url(), "demo-embed").await?;
    database.add_target(route, same, 2, 1).await?;
    until("the third one answers", async || Ok(embed(&edge).await?.status() == 200)).await?;
    let seen = pair.spare.log(0).calls;
    assert!(!seen.is_empty() && seen.iter().all(|call| call.body["model"] == "demo-embed"), "{seen:?}");
    edge.stop().await
}
