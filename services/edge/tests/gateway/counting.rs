//! Tokens of messages, counted by providers and here.

use reqwest::Response;
use serde_json::json;
use tokio::net::TcpListener;
use upstream::{Behaviour, Handle, Options, ScriptedError};

use crate::script::{answers, failing, next, raw};
use crate::world::{TURN, World, body_of, header, turn_tokens};

const COUNT: &str = "/v1/messages/count_tokens";

#[tokio::test]
async fn tokens_are_counted_by_the_provider_or_here() -> anyhow::Result<()> {
    let body = json!({ "model": "fast", "messages": [{ "role": "user", "content": TURN }] });
    for is_same in [true, false] {
        let limits = "requests_per_minute = 1000";
        let world = if is_same { World::anthropic(limits).await? } else { World::with(limits).await? };
        let edge = world.edge().await?;
        let answer = edge.post(COUNT, &body).send().await?;
        assert_eq!(header(&answer, "anthropic-ratelimit-requests-remaining"), Some("999"));
        let (attempts, connection) = if is_same { ("1", Some("provider")) } else { ("0", None) };
        assert_eq!(
            ["x-ragmux-attempts", "x-ragmux-model", "x-ragmux-connection"].map(|name| header(&answer, name)),
            [Some(attempts), Some("real-chat"), connection]
        );
        let counted = body_of(answer, 200).await;
        assert_eq!(counted, json!({ "input_tokens": turn_tokens() }));
        let calls = world.upstream.log(0).calls;
        assert_eq!(
            calls.iter().map(|call| call.path.as_str()).collect::<Vec<_>>(),
            if is_same { vec![COUNT] } else { vec![] }
        );
        let logged = world.the_logged_call().await?;
        assert_eq!((logged.operation.as_str(), logged.status, logged.charged_requests), ("count_tokens", 200, 1));
        assert_eq!((logged.charged_tokens, logged.charged_cost), (0, 0));
        assert_eq!(logged.attempts.to_string(), attempts);
        if is_same {
            for _ in 0..2 {
                next(&world.upstream, failing(503));
            }
            let answer = edge.post(COUNT, &body).send().await?;
            assert_eq!((answer.status().as_u16(), header(&answer, "x-ragmux-attempts")), (200, Some("3")));
            assert_eq!(world.logged(2).await?[1].attempts, 3);
            next(&world.upstream, failing(400));
            let told = body_of(edge.post(COUNT, &body).send().await?, 400).await;
            assert_eq!((&told["type"], &told["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        }
        edge.stop().await?;
    }
    Ok(())
}

/// A world whose route leads to Anthropic first, then to another provider, of whichever type.
async fn pair(other: &str) -> anyhow::Result<(World, Handle)> {
    let world = World::anthropic("").await?;
    let spare = upstream::serve(TcpListener::bind("127.0.0.1:0").await?, Options::scripted())?;
    let connection = world.database.insert_connection("spare", &spare.base_url(), "spare-chat").await?;
    world.database.change_connection(connection, &format!("provider_type = '{other}'")).await?;
    world.database.add_target(world.route, connection, 1, 1).await?;
    Ok((world, spare))
}

/// Attempts, connection and model that an answer names.
fn named(answer: &Response) -> [Option<&str>; 3] {
    ["x-ragmux-attempts", "x-ragmux-connection", "x-ragmux-model"].map(|name| header(answer, name))
}

#[tokio::test]
async fn who_counts_next_is_who_would_answer_next() -> anyhow::Result<()> {
    let body = json!({ "model": "fast", "messages": [{ "role": "user", "content": TURN }] });
    let (world, spare) = pair("anthropic").await?;
    let edge = world.edge().await?;
    next(&world.upstream, failing(401));
    next(&spare, answers(&json!({ "input_tokens": 4711 })));
    let answer = edge.post(COUNT, &body).send().await?;
    assert_eq!(named(&answer), [Some("2"), Some("spare"), Some("spare-chat")]);
    assert_eq!(body_of(answer, 200).await, json!({ "input_tokens": 4711 }));
    assert_eq!(spare.log(0).calls[0].body["model"], "spare-chat");
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.attempts, logged.model.as_deref(), logged.charged_tokens), (2, Some("spare-chat"), 0));
    // Nobody else thinks better of a request that one refuses.
    next(&world.upstream, failing(400));
    assert_eq!(edge.post(COUNT, &body).send().await?.status(), 400);
    assert_eq!(spare.counters().requests, 1);
    edge.stop().await
}

#[tokio::test]
async fn it_is_counted_here_where_the_next_one_has_another_api() -> anyhow::Result<()> {
    let body = json!({ "model": "fast", "messages": [{ "role": "user", "content": TURN }] });
    let (world, spare) = pair("mistral").await?;
    let edge = world.edge().await?;
    for (behaviour, attempts) in [(failing(401), 1), (raw("application/json", "no count"), 1)] {
        next(&world.upstream, behaviour);
        let answer = edge.post(COUNT, &body).send().await?;
        assert_eq!(named(&answer), [Some(attempts.to_string().as_str()), None, Some("spare-chat")]);
        assert_eq!(body_of(answer, 200).await, json!({ "input_tokens": turn_tokens() }));
    }
    assert_eq!(spare.counters().requests, 0, "whom nobody asks");
    let logged = world.logged(2).await?;
    assert_eq!(
        logged
            .iter()
            .map(|call| (call.status, call.attempts, call.model.as_deref(), call.charged_tokens))
            .collect::<Vec<_>>(),
        [(200, 1, Some("spare-chat"), 0); 2]
    );
    edge.stop().await
}

#[tokio::test]
async fn it_is_counted_here_for_a_server_that_has_no_such_call() -> anyhow::Result<()> {
    let body = json!({ "model": "fast", "messages": [{ "role": "user", "content": TURN }] });
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    let without = ScriptedError { r#type: Some("route_error".to_owned()), ..ScriptedError::status(404) };
    let without = Behaviour { error: Some(without), ..Behaviour::default() };
    for behaviour in [without, failing(405)] {
        next(&world.upstream, behaviour);
        let answer = edge.post(COUNT, &body).send().await?;
        assert_eq!(named(&answer), [Some("1"), None, Some("real-chat")]);
        assert_eq!(body_of(answer, 200).await, json!({ "input_tokens": turn_tokens() }));
    }
    // One that has it, and not the model.
    next(&world.upstream, failing(404));
    assert_eq!(body_of(edge.post(COUNT, &body).send().await?, 404).await["error"]["type"], "not_found_error");
    // One that is away, and nobody beside it.
    next(&world.upstream, failing(500));
    assert_eq!(body_of(edge.post(COUNT, &body).send().await?, 502).await["error"]["code"], "upstream_failed");
    edge.stop().await
}
