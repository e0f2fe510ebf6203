//! Clients that leave, and keys that end, between two tries of a call.

use reqwest::RequestBuilder;
use serde_json::json;
use testkit::LoggedCall;
use tokio::task::JoinHandle;
use upstream::{Behaviour, ScriptedError, Wait};

use crate::script::{failing, next};
use crate::world::{Edge, World, body_of, error_of, turn_tokens};

/// It asks to be left alone for as long as anybody waits for it.
fn busy() -> Behaviour {
    let error = ScriptedError { retry_after: Some("8".to_owned()), ..ScriptedError::status(503) };
    Behaviour { error: Some(error), ..Behaviour::default() }
}

type Asking = JoinHandle<reqwest::Result<reqwest::Response>>;

/// Begins a call, and waits until the provider has failed it and the edge has heard of that.
async fn failed_once(world: &World, edge: &Edge, call: RequestBuilder, finished: u64) -> anyhow::Result<Asking> {
    next(&world.upstream, busy());
    let call = tokio::spawn(call.send());
    world.upstream_until(Wait { finished: Some(finished), ..Wait::default() }).await?;
    // What arrived before these is read before them: all of it is done by one thread, in the order of its arrival.
    for _ in 0..3 {
        body_of(edge.get("/v1/models").send().await?, 200).await;
    }
    assert!(!call.is_finished());
    Ok(call)
}

async fn the_last(world: &World, calls: usize) -> anyhow::Result<LoggedCall> {
    Ok(world.logged(calls).await?.pop().unwrap())
}

#[tokio::test]
async fn a_client_that_leaves_between_two_tries_pays_nothing() -> anyhow::Result<()> {
    for limits in ["", "tokens_per_day = 100000, requests_per_minute = 100"] {
        let world = World::with(limits).await?;
        let edge = world.edge().await?;
        let text = json!({ "model": "fast", "input": "moon" });
        let calls = [edge.chat(json!({})), edge.chat(json!({ "stream": true })), edge.post("/v1/embeddings", &text)];
        for (number, call) in (1..).zip(calls) {
            failed_once(&world, &edge, call, number).await?.abort();
            let logged = the_last(&world, usize::try_from(number)?).await?;
            assert_eq!((logged.status, logged.charged_requests, logged.charged_tokens), (499, 0, 0), "{logged:?}");
            assert_eq!((logged.state.as_str(), logged.charged_cost), ("final", 0));
        }
        assert_eq!(world.upstream.counters().requests, 3, "none was tried again");
        let totals = world.database.tier_totals(world.project).await?;
        assert_eq!((totals.open_calls, totals.open_rows, totals.day_tokens, totals.day_tokens_held), (0, 0, 0, 0));
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_that_was_begun_before_the_provider_spoke_costs_nothing_either() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("STREAM_COMMIT_AFTER", "10ms")]).await?;
    next(&world.upstream, busy());
    let mut answer = edge.chat(json!({ "stream": true })).send().await?;
    assert_eq!((answer.status().as_u16(), answer.chunk().await?.as_deref()), (200, Some(&b": ping\n\n"[..])));
    world.upstream_until(Wait { finished: Some(1), ..Wait::default() }).await?;
    for _ in 0..3 {
        body_of(edge.get("/v1/models").send().await?, 200).await;
    }
    drop(answer);
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.charged_requests, logged.charged_tokens), (499, 0, 0), "{logged:?}");
    edge.stop().await
}

#[tokio::test]
async fn a_client_that_leaves_while_a_later_try_is_not_answered_pays_the_prompt() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    next(&world.upstream, failing(503));
    next(&world.upstream, Behaviour { hold: true, ..Behaviour::default() });
    let call = tokio::spawn(edge.chat(json!({})).send());
    world.upstream_until(Wait { held: Some(1), requests: Some(2), ..Wait::default() }).await?;
    call.abort();
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.charged_requests, logged.charged_tokens), (499, 1, turn_tokens()));
    edge.stop().await
}

#[tokio::test]
async fn a_key_that_is_revoked_between_two_tries_is_charged_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let call = failed_once(&world, &edge, edge.chat(json!({})), 1).await?;
    world.database.change_key(world.key_id, "revoked_at = clock_timestamp()").await?;
    let answer = tokio::time::timeout(testkit::DEADLINE, call).await???;
    assert_eq!(error_of(answer).await, (401, "invalid_api_key".to_owned(), json!("key_revoked")));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.charged_requests, logged.charged_tokens), (401, 0, 0));
    edge.stop().await
}
