//! Answers that are of no use, although a provider has given them: too large, broken, no answers.

use config::Size;
use futures::StreamExt;
use serde_json::json;
use upstream::Behaviour;

use crate::script::{JSON, raw};
use crate::world::{TURN, World, body_of, error_of, turn_tokens};

fn long(letters: usize) -> String {
    json!({ "choices": [{ "index": 0, "message": { "content": "a".repeat(letters) } }] }).to_string()
}

#[tokio::test]
async fn an_answer_that_is_of_no_use_costs_the_prompt() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 1000000").await?;
    let edge = world.edge().await?;
    let cases = [
        (raw(JSON, "no JSON"), "upstream_bad_answer"),
        (Behaviour { cut_after_bytes: Some(50), ..Behaviour::default() }, "upstream_truncated"),
        (raw(JSON, long(33 << 20)), "upstream_too_large"),
    ];
    for (behaviour, code) in cases.clone() {
        world.next_chat(behaviour);
        let told = error_of(edge.chat(json!({ "max_tokens": 64 })).send().await?).await;
        assert_eq!(told, (502, "upstream_error".to_owned(), json!(code)));
    }
    let logged = world.logged(cases.len()).await?;
    for (_, code) in &cases {
        let logged = logged.iter().find(|call| call.error_code.as_deref() == Some(*code)).unwrap();
        let charged = (logged.status, logged.state.as_str(), logged.charged_requests, logged.charged_tokens);
        assert_eq!(charged, (502, "estimated", 1, turn_tokens()), "{code}");
    }
    edge.stop().await
}

#[tokio::test]
async fn answers_count_as_bodies_in_flight_and_give_back_what_they_took() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 1000000").await?;
    let edge = world.edge_tuned(&[], |settings| settings.bodies = Size::mebibytes(2)).await?;
    for _ in 0..2 {
        world.next_chat(raw(JSON, long(3 << 20)));
        let told = error_of(edge.chat(json!({ "max_tokens": 64 })).send().await?).await;
        assert_eq!(told, (503, "server_error".to_owned(), json!("overloaded")));
        world.next_chat(raw(JSON, long(1 << 20)));
        body_of(edge.chat(json!({ "max_tokens": 64 })).send().await?, 200).await;
    }
    let logged = world.logged(4).await?;
    let refused = logged.iter().find(|call| call.status == 503).unwrap();
    assert_eq!((refused.error_code.as_deref(), refused.charged_tokens), (Some("overloaded"), turn_tokens()));
    edge.stop().await
}

#[tokio::test]
async fn what_is_kept_of_a_stream_for_its_end_counts_as_well() -> anyhow::Result<()> {
    const PIECE: usize = 1 << 10;
    const PIECES: usize = 700;
    let world = World::new().await?;
    world.database.execute("UPDATE model_connections SET provider_type = 'groq'").await?;
    let edge = world.edge_tuned(&[], |settings| settings.bodies = Size::mebibytes(4)).await?;
    // A response ends by repeating all of the answer.
    let pieces = Behaviour { content: Some("a".repeat(PIECE)), chunks: Some(PIECES), ..Behaviour::default() };
    world.next_chat(Behaviour { hold_after_events: Some(PIECES), ..pieces });
    let ask = json!({ "model": "fast", "input": TURN, "stream": true });
    let mut stream = edge.post("/v1/responses", &ask).send().await?.bytes_stream();
    let mut told = Vec::new();
    while told.len() < (PIECES - 2) * PIECE {
        let next = tokio::time::timeout(testkit::DEADLINE, stream.next()).await?;
        told.extend_from_slice(&next.unwrap()?);
    }
    let body = "a".repeat((4 << 20) - (400 << 10));
    let large = async || edge.chat(json!({ "x_unknown": body })).send().await;
    assert_eq!(error_of(large().await?).await.0, 503);
    world.upstream.release(None);
    while let Some(next) = tokio::time::timeout(testkit::DEADLINE, stream.next()).await? {
        told.extend_from_slice(&next?);
    }
    let told = String::from_utf8(told)?;
    assert!(told.contains("event: response.completed"), "{}", &told[told.len().saturating_sub(1000)..]);
    world.logged(1).await?;
    body_of(large().await?, 200).await;
    edge.stop().await
}
