//! Clients that keep a call and take nothing of it.

use std::time::Duration;

use reqwest::Client;
use serde_json::json;
use upstream::{Behaviour, Wait};

use crate::world::{CHAT, World, answer_tokens, body_of, turn, turn_tokens};

const WORDS: usize = 200;

#[tokio::test]
async fn an_http2_client_that_takes_nothing_of_its_stream_loses_it_and_only_it() -> anyhow::Result<()> {
    let world = World::with("concurrent_requests = 1").await?;
    let edge = world.edge_tuned(&[], |settings| settings.listener.write_stall = Duration::from_millis(500)).await?;
    world.next_chat(Behaviour {
        content: Some("word ".to_owned()),
        chunks: Some(WORDS),
        hold_after_events: Some(WORDS - 1),
        ..Behaviour::default()
    });
    // Room for a few events, and none is made: the answer is not read. The connection itself is kept alive.
    let client = Client::builder()
        .no_proxy()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(1024)
        .http2_initial_connection_window_size(1 << 20)
        .build()?;
    let ask = |body| client.post(edge.url(CHAT)).bearer_auth(world.key.secret().expose()).json(&body);
    let stalled = ask(turn(json!({ "stream": true }))).send().await?;
    assert_eq!(stalled.status(), 200);
    world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str()), (499, "estimated"));
    let most = answer_tokens(&"word ".repeat(WORDS));
    assert!((0..=most).contains(&(logged.charged_tokens - turn_tokens())), "{logged:?}");
    assert!(stalled.bytes().await.is_err(), "the stream was reset");
    // Its slot is free, and the connection still serves.
    body_of(ask(turn(json!({ "max_tokens": 64 }))).send().await?, 200).await;
    edge.stop().await
}
