//! What clients say a call is for.

use serde_json::{Value, json};
use testkit::until;
use upstream::{Behaviour, Wait};

use crate::passages;
use crate::world::{CHAT, body_of, turn};

const TAGS: &str = "x-ragmux-tags";

/// A call of each billable route, with its model's path at the provider. Their bodies have tags of their own.
fn calls() -> [(&'static str, Value); 4] {
    let own = json!({ "metadata": { "team": "body", "job": "nightly", "n": 1 }, "user": "u-1" });
    let with = |body: Value| {
        let mut body = body;
        for (name, value) in own.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    [
        (CHAT, with(turn(json!({})))),
        (CHAT, with(turn(json!({ "stream": true })))),
        ("/v1/embeddings", with(json!({ "model": "vectors", "input": "red door" }))),
        ("/v1/retrieve", with(json!({ "query": "How long does the warranty last?" }))),
    ]
}

#[tokio::test]
async fn tags_are_kept_in_the_log_and_only_the_bodys_go_upstream() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    let embed = world.database.insert_connection("vectors", &world.upstream.base_url(), "demo-embed").await?;
    world.database.insert_route(world.project, "vectors", embed).await?;
    let edge = world.edge().await?;
    for (place, (path, body)) in calls().into_iter().enumerate() {
        let calls_before = world.upstream.log(0).calls.len();
        let answer = edge.post(path, &body).header(TAGS, "team=search, customer=ACME%2C%20Inc.").send().await?;
        assert_eq!(answer.status(), 200, "{path}");
        answer.bytes().await?;
        let logged = world.logged(place + 1).await?.pop().unwrap();
        let tags = json!({ "team": "search", "customer": "ACME, Inc.", "job": "nightly", "user": "u-1" });
        assert_eq!(logged.tags, Some(tags), "{path}");
        let seen = world.upstream.log(0).calls.split_off(calls_before);
        assert!(!seen.is_empty() && seen.iter().all(|call| !call.headers.contains_key(TAGS)), "{path}: {seen:?}");
        if path != "/v1/retrieve" {
            let call = seen.iter().find(|call| call.path == path).unwrap();
            assert_eq!((&call.body["metadata"], &call.body["user"]), (&body["metadata"], &body["user"]), "{path}");
        }
    }
    edge.stop().await
}

#[tokio::test]
async fn malformed_tags_are_refused_before_anything_is_done() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    let edge = world.edge().await?;
    for (path, body) in calls() {
        let told = body_of(edge.post(path, &body).header(TAGS, "team").send().await?, 400).await;
        let error = &told["error"];
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(TAGS)));
        assert_eq!(
            error["message"],
            "x-ragmux-tags must be key=value pairs separated by commas, or a JSON object of strings"
        );
    }
    assert_eq!(world.upstream.counters().requests, 0);
    assert_eq!(world.database.tier_totals(world.project).await?, testkit::TierTotals::default());
    // No object of strings: the provider's matter.
    let answer = edge.chat(json!({ "metadata": ["a"], "user": 7 })).send().await?;
    assert_eq!(answer.status(), 200);
    assert_eq!(world.the_logged_call().await?.tags, None);
    edge.stop().await
}

#[tokio::test]
async fn a_call_in_flight_has_its_tags_already() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let running = tokio::spawn(edge.chat(json!({})).header(TAGS, r#"{"team":"search"}"#).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    until("its row is there", async || {
        let details = world.database.open_details(world.project).await?;
        Ok(details.first().is_some_and(|details| details["tags"] == json!({ "team": "search" })))
    })
    .await?;
    world.upstream.release(None);
    assert_eq!(running.await??.status(), 200);
    edge.stop().await
}
