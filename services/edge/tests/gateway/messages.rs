//! The Messages API, before providers of the same dialect and of another.

use reqwest::{Method, Response};
use serde_json::{Value, json};
use testkit::early_in_a_minute;
use upstream::{Behaviour, Raw, ReportUsage, Script};

use crate::script::{failing, next, says_for};
use crate::stream::{content, events};
use crate::world::{Edge, TURN, World, answer_tokens, body_of, header, turn_tokens};

const MESSAGES: &str = "/v1/messages";

/// What the provider reports, in tokens.
const USED: [u64; 4] = [30, 4, 10, 0];

impl World {
    /// One whose provider speaks the Messages API.
    pub(crate) async fn anthropic(limits: &str) -> anyhow::Result<Self> {
        let world = Self::with(limits).await?;
        world.database.execute("UPDATE model_connections SET provider_type = 'anthropic'").await?;
        Ok(world)
    }
}

impl Edge {
    async fn messages(&self, members: Value) -> anyhow::Result<Response> {
        let mut body = json!({ "model": "fast", "max_tokens": 100, "messages": [{ "role": "user", "content": TURN }] });
        for (name, value) in members.as_object().unwrap() {
            body[name] = value.clone();
        }
        Ok(self.post(MESSAGES, &body).send().await?)
    }
}

/// The events of a stream, each of which has the name that its type repeats.
fn named(text: &str) -> Vec<Value> {
    let read = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    text.split_terminator("\n\n").filter(|event| !event.starts_with(':')).map(read).collect()
}

fn said(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

/// Type and code of an error of this API.
async fn told(answer: Response, status: u16) -> (String, Value) {
    let id = header(&answer, "request-id").unwrap().to_owned();
    assert_eq!(header(&answer, "x-request-id"), Some(id.as_str()));
    let body = body_of(answer, status).await;
    assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!(id)));
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    (body["error"]["type"].as_str().unwrap().to_owned(), body["error"]["code"].clone())
}

#[tokio::test]
async fn a_message_goes_to_its_own_api_as_it_came() -> anyhow::Result<()> {
    let world = World::anthropic("system_prompt = 'Be kind.'").await?;
    let edge = world.edge().await?;
    next(&world.upstream, says_for("Full tonight.", USED));
    let body = json!({
        "model": "fast", "max_tokens": 100, "x_unknown": { "kept": 1.50 }, "top_k": 3, "ragmux": { "include_context": true },
        "metadata": { "user_id": "u-17" }, "system": [{ "type": "text", "text": "own", "cache_control": { "type": "ephemeral" } }],
        "messages": [{ "role": "user", "content": TURN }],
    });
    let key = world.key.secret().expose().to_owned();
    let ask = |headers: &[(&str, &str)]| {
        let request = edge.bare(Method::POST, MESSAGES).header("x-api-key", &key).json(&body);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send()
    };
    let answer = ask(&[("anthropic-beta", "b-1")]).await?;
    assert_eq!(header(&answer, "x-ragmux-model"), Some("real-chat"));
    let answer = body_of(answer, 200).await;
    assert_eq!((&answer["model"], &answer["content"][0]["text"]), (&json!("fast"), &json!("Full tonight.")));
    assert!(answer["ragmux"].is_object());
    let call = world.upstream.log(0).calls.remove(0);
    assert_eq!((call.path.as_str(), call.headers["anthropic-version"].as_str()), (MESSAGES, "2023-06-01"));
    assert_eq!(call.headers["anthropic-beta"], "b-1");
    // A version of the client's own goes on.
    next(&world.upstream, says_for("Full tonight.", USED));
    body_of(ask(&[("anthropic-version", "2024-10-22")]).await?, 200).await;
    let second = world.upstream.log(0).calls.remove(1);
    assert_eq!(
        (second.headers["anthropic-version"].as_str(), second.headers.get("anthropic-beta")),
        ("2024-10-22", None)
    );
    let mut sent = body.clone();
    sent.as_object_mut().unwrap().remove("ragmux");
    sent["model"] = json!("real-chat");
    sent["system"].as_array_mut().unwrap().insert(0, json!({ "type": "text", "text": "Be kind." }));
    assert_eq!(call.body, sent);
    let logged = world.logged(2).await?.remove(0);
    assert_eq!(
        (logged.operation.as_str(), logged.prompt_tokens, logged.completion_tokens),
        ("chat", Some(30), Some(4))
    );
    edge.stop().await
}

#[tokio::test]
async fn a_stream_of_the_same_dialect_is_the_providers_but_for_the_model() -> anyhow::Result<()> {
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    next(&world.upstream, says_for("Full tonight.", USED));
    let plain = edge.messages(json!({ "model": "fast", "stream": true })).await?.text().await?;
    for split_bytes in [1, 7] {
        next(&world.upstream, Behaviour { split_bytes: Some(split_bytes), ..says_for("Full tonight.", USED) });
        let answer = edge.messages(json!({ "stream": true, "ragmux": { "include_context": true } })).await?;
        assert_eq!(header(&answer, "content-type"), Some("text/event-stream; charset=utf-8"));
        let told = named(&answer.text().await?);
        assert_eq!((said(&told).as_str(), &told[0]["message"]["model"]), ("Full tonight.", &json!("fast")));
        let (own, end) = (&told[told.len() - 2], &told[told.len() - 1]);
        assert_eq!((&own["type"], &end["type"]), (&json!("ragmux"), &json!("message_stop")));
        assert!(own["ragmux"]["sources"].is_array());
        let without: Vec<&str> = kinds(&told).into_iter().filter(|kind| *kind != "ragmux").collect();
        assert_eq!(without, kinds(&named(&plain)));
    }
    for logged in world.logged(3).await? {
        assert_eq!((logged.status, logged.prompt_tokens, logged.completion_tokens), (200, Some(30), Some(4)));
    }
    edge.stop().await
}

#[tokio::test]
async fn a_message_is_answered_by_a_provider_of_chats() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let members =
        json!({ "system": "Be brief.", "stop_sequences": ["x"], "top_k": 3, "context_management": { "a": 1 } });
    next(&world.upstream, says_for("Full tonight.", USED));
    let answer = edge.messages(members.clone()).await?;
    assert!(header(&answer, "x-ragmux-dropped").unwrap().contains("context_management"));
    let answer = body_of(answer, 200).await;
    assert_eq!(
        (&answer["type"], &answer["model"], &answer["stop_reason"]),
        (&json!("message"), &json!("fast"), &json!("end_turn"))
    );
    assert_eq!(answer["content"], json!([{ "type": "text", "text": "Full tonight." }]));
    let usage = json!({
        "input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 10, "output_tokens": 4,
    });
    assert_eq!(answer["usage"], usage);
    let call = world.upstream.log(0).calls.remove(0);
    assert_eq!((call.path.as_str(), &call.body["stop"]), ("/v1/chat/completions", &json!(["x"])));
    assert_eq!(call.body["messages"][0], json!({ "role": "system", "content": "Be brief." }));

    next(&world.upstream, says_for("Full tonight.", USED));
    let mut streamed = members;
    streamed["stream"] = json!(true);
    let told = named(&edge.messages(streamed).await?.text().await?);
    assert_eq!(
        kinds(&told),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(said(&told), "Full tonight.");
    let end = &told[told.len() - 2];
    assert_eq!((&end["usage"], &end["delta"]["stop_reason"]), (&usage, &json!("end_turn")));
    for logged in world.logged(2).await? {
        assert_eq!((logged.status, logged.completion_tokens), (200, Some(4)));
    }
    edge.stop().await
}

#[tokio::test]
async fn a_chat_is_answered_by_a_provider_of_messages() -> anyhow::Result<()> {
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    next(&world.upstream, says_for("Full tonight.", USED));
    // What clients of another API say in headers of this one is not for the provider.
    let headers =
        edge.chat(json!({ "seed": 7 })).header("anthropic-version", "2024-10-22").header("anthropic-beta", "b-1");
    let answer = body_of(headers.send().await?, 200).await;
    assert_eq!(
        (&answer["model"], &answer["choices"][0]["message"]["content"]),
        (&json!("fast"), &json!("Full tonight."))
    );
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(30), &json!(4)));
    let call = world.upstream.log(0).calls.remove(0);
    // The API insists on a bound.
    assert_eq!((call.path.as_str(), &call.body["max_tokens"]), (MESSAGES, &json!(4096)));
    assert_eq!((call.headers["anthropic-version"].as_str(), call.headers.get("anthropic-beta")), ("2023-06-01", None));
    next(&world.upstream, says_for("Full tonight.", USED));
    let asked = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let (chunks, done) = events(&edge.chat(asked).send().await?.text().await?);
    assert!(done);
    assert_eq!(content(&chunks), "Full tonight.");
    assert_eq!(chunks.last().unwrap()["usage"]["prompt_tokens"], 30);
    edge.stop().await
}

#[tokio::test]
async fn errors_have_the_form_of_the_api() -> anyhow::Result<()> {
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    let no_key = edge.bare(Method::POST, MESSAGES).json(&json!({})).send().await?;
    assert_eq!(told(no_key, 401).await.0, "authentication_error");
    let unbounded = edge.messages(json!({ "max_tokens": null })).await?;
    assert_eq!(told(unbounded, 400).await.0, "invalid_request_error");
    // Where a client puts `/v1` behind a base URL that ends with it.
    let twice = edge.post("/v1/v1/messages", &json!({})).send().await?;
    assert_eq!(told(twice, 400).await.0, "invalid_request_error");
    let wrong_method = edge.get(MESSAGES).send().await?;
    assert_eq!(told(wrong_method, 405).await, ("invalid_request_error".to_owned(), json!("method_not_allowed")));
    for (status, seen, kind) in [
        (400, 400, "invalid_request_error"),
        (401, 502, "api_error"),
        (413, 413, "request_too_large"),
        (500, 502, "api_error"),
    ] {
        next(&world.upstream, failing(status));
        assert_eq!(told(edge.messages(json!({ "stream": true })).await?, seen).await.0, kind);
    }
    let overloaded = failing(529);
    world.upstream.script(Script { path: MESSAGES.to_owned(), default: Some(overloaded), ..Script::default() });
    assert_eq!(told(edge.messages(json!({})).await?, 503).await.0, "overloaded_error");
    edge.stop().await
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_event() -> anyhow::Result<()> {
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    next(&world.upstream, Behaviour { cut_after_events: Some(5), ..says_for("Full tonight.", USED) });
    let events = named(&edge.messages(json!({ "stream": true })).await?.text().await?);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert_eq!(last["error"]["code"], "upstream_truncated");
    let transcript = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"real-chat\"}}\n\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
    );
    let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body: transcript.to_owned() };
    next(&world.upstream, Behaviour { raw: Some(raw), ..Behaviour::default() });
    let events = named(&edge.messages(json!({ "stream": true })).await?.text().await?);
    assert_eq!(kinds(&events), ["message_start", "error"]);
    assert_eq!(events[1]["error"]["type"], "overloaded_error");
    let logged = world.logged(2).await?;
    assert!(logged.iter().all(|call| call.state == "estimated" && call.status != 200), "{logged:?}");
    edge.stop().await
}

#[tokio::test]
async fn what_a_stream_reports_of_its_prompt_is_paid_however_it_ends() -> anyhow::Result<()> {
    const BEGUN: &str = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"real-chat\",\"usage\":",
        "{\"input_tokens\":200000,\"cache_creation_input_tokens\":50000,\"output_tokens\":1}}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,",
        "\"delta\":{\"type\":\"text_delta\",\"text\":\"Full tonight.\"}}\n\n",
    );
    const FAILED: &str =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"a\"}}\n\n";
    const UNREPORTED: &str = concat!(
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},",
        "\"usage\":{\"output_tokens\":-9}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    let charged = 250_000 + answer_tokens("Full tonight.");
    let ends = [("", true, 499), ("", false, 502), (FAILED, false, 503), (UNREPORTED, false, 200)];
    let mut calls = 0;
    for (end, client_leaves, status) in ends {
        for is_same in [true, false] {
            let body = format!("{BEGUN}{end}");
            let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body };
            next(&world.upstream, Behaviour { raw: Some(raw), stay_open: client_leaves, ..Behaviour::default() });
            let streamed = json!({ "stream": true });
            let mut answer = if is_same { edge.messages(streamed).await? } else { edge.chat(streamed).send().await? };
            let mut got = String::new();
            while let Some(piece) = answer.chunk().await? {
                got.push_str(std::str::from_utf8(&piece)?);
                if client_leaves && got.contains("Full tonight.") {
                    break;
                }
            }
            drop(answer);
            assert!(got.contains("Full tonight."), "{got}");
            calls += 1;
            let logged = world.logged(calls).await?.pop().unwrap();
            assert_eq!((logged.status, logged.state.as_str()), (status, "estimated"), "{logged:?}");
            assert_eq!((logged.prompt_tokens, logged.charged_tokens), (Some(250_000), charged), "{logged:?}");
        }
    }
    edge.stop().await
}

#[tokio::test]
async fn a_stream_without_its_last_event_is_not_whole() -> anyhow::Result<()> {
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    next(&world.upstream, Behaviour { omit_done: true, ..says_for("Full tonight.", USED) });
    let events = named(&edge.messages(json!({ "stream": true })).await?.text().await?);
    assert_eq!(said(&events), "Full tonight.");
    assert_eq!(events.last().unwrap()["error"]["code"], "upstream_truncated");
    let logged = world.the_logged_call().await?;
    // What was reported is paid all the same.
    assert_eq!((logged.status, logged.prompt_tokens, logged.completion_tokens), (502, Some(30), Some(4)));
    edge.stop().await
}

#[tokio::test]
async fn limits_have_the_names_of_the_api() -> anyhow::Result<()> {
    let world = World::anthropic("requests_per_minute = 1").await?;
    let edge = world.edge().await?;
    early_in_a_minute().await?;
    let answer = edge.messages(json!({})).await?;
    assert_eq!(header(&answer, "anthropic-ratelimit-requests-limit"), Some("1"));
    assert_eq!(header(&answer, "anthropic-ratelimit-requests-remaining"), Some("0"));
    assert!(header(&answer, "anthropic-ratelimit-requests-reset").unwrap().ends_with('Z'));
    assert_eq!(header(&answer, "x-ratelimit-limit-requests"), None);
    body_of(answer, 200).await;
    let denied = edge.messages(json!({ "stream": true })).await?;
    assert!(header(&denied, "retry-after").is_some());
    assert_eq!(header(&denied, "anthropic-ratelimit-requests-limit"), Some("1"));
    assert_eq!(told(denied, 429).await, ("rate_limit_error".to_owned(), json!("rate_limit_rpm")));
    let body = body_of(edge.messages(json!({})).await?, 429).await;
    assert_eq!((&body["error"]["scope"], &body["error"]["cap"]), (&json!("project"), &json!(1)));
    edge.stop().await
}

#[tokio::test]
async fn a_bound_that_is_kept_ends_a_stream_properly() -> anyhow::Result<()> {
    for is_same in [true, false] {
        let limits = "enforcement = 'hard', tokens_per_day = 1000000";
        let world = if is_same { World::anthropic(limits).await? } else { World::with(limits).await? };
        let edge = world.edge().await?;
        next(
            &world.upstream,
            Behaviour {
                content: Some("word ".to_owned()),
                chunks: Some(60),
                usage: ReportUsage::Never,
                ..Behaviour::default()
            },
        );
        let events = named(&edge.messages(json!({ "stream": true, "max_tokens": 10 })).await?.text().await?);
        let tokens = answer_tokens(&said(&events));
        assert!(tokens <= 10 && answer_tokens(&format!("{}word ", said(&events))) > 10);
        let end = &events[events.len() - 2];
        assert_eq!(
            (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
            (&json!("max_tokens"), &json!(tokens))
        );
        assert_eq!(end["usage"]["input_tokens"], turn_tokens());
        assert_eq!(kinds(&events[events.len() - 3..]), ["content_block_stop", "message_delta", "message_stop"]);
        let logged = world.the_logged_call().await?;
        assert_eq!((logged.status, logged.charged_tokens), (200, tokens + turn_tokens()));
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn features_with_prices_of_their_own_need_leave_where_money_is_counted() -> anyhow::Result<()> {
    let world = World::anthropic("cost_per_day = 1000000000000").await?;
    world.database.insert_price("real-chat", 1, 1).await?;
    world
        .database
        .execute("UPDATE model_prices SET provider_type = 'anthropic' WHERE model_pattern = 'real-chat'")
        .await?;
    let edge = world.edge().await?;
    let body = json!({ "model": "fast", "max_tokens": 9, "messages": [{ "role": "user", "content": TURN }] });
    let searching = json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] });
    assert_eq!(told(edge.messages(searching).await?, 400).await.1, "unpriced_feature");
    let far = json!({ "type": "document", "source": { "type": "url", "url": "https://files.example/book.pdf" } });
    let far = edge.messages(json!({ "messages": [{ "role": "user", "content": [far] }] })).await?;
    assert_eq!(told(far, 400).await.1, "unpriced_feature");
    let goes_on = json!({ "thread": { "type": "continue", "previous_message_id": "msg_1" } });
    assert_eq!(told(edge.messages(goes_on).await?, 400).await.1, "unpriced_feature");
    let long = edge.post(MESSAGES, &body).header("anthropic-beta", "a-1, context-1m-2025-08-07");
    assert_eq!(told(long.send().await?, 400).await.1, "unpriced_feature");
    body_of(edge.post(MESSAGES, &body).header("anthropic-beta", "a-1").send().await?, 200).await;
    let logged = world.the_logged_call().await?;
    assert!(logged.charged_cost > 0, "{logged:?}");
    edge.stop().await
}

#[tokio::test]
async fn the_result_of_a_call_that_nobody_made_is_refused_where_it_would_be_translated() -> anyhow::Result<()> {
    let result = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": "12" });
    let messages = json!({ "messages": [{ "role": "user", "content": [result] }] });
    let world = World::new().await?;
    let edge = world.edge().await?;
    let told = body_of(edge.messages(messages.clone()).await?, 400).await;
    assert_eq!(
        (&told["error"]["type"], &told["error"]["param"]),
        (&json!("invalid_request_error"), &json!("messages[0].content[0].tool_use_id"))
    );
    assert_eq!(world.upstream.counters().requests, 0);
    edge.stop().await?;
    // Whoever speaks the same API judges for himself.
    let world = World::anthropic("").await?;
    let edge = world.edge().await?;
    body_of(edge.messages(messages).await?, 200).await;
    edge.stop().await
}
