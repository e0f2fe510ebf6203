//! The Responses API, before providers of the same dialect and of others.

use reqwest::{Method, Response};
use serde_json::{Value, json};
use testkit::early_in_a_minute;
use upstream::{Behaviour, ReportUsage, Wait};

use crate::script::{failing, next, raw, says_for};
use crate::world::{CHAT, Edge, TURN, World, answer_tokens, body_of, error_of, header, turn_tokens};

const RESPONSES: &str = "/v1/responses";

/// What the provider reports, in tokens.
const USED: [u64; 4] = [30, 4, 10, 2];

impl World {
    /// One whose provider is of that type.
    async fn of(provider: &str, limits: &str) -> anyhow::Result<Self> {
        let world = Self::with(limits).await?;
        world.database.execute(&format!("UPDATE model_connections SET provider_type = '{provider}'")).await?;
        Ok(world)
    }
}

impl Edge {
    async fn responses(&self, members: Value) -> anyhow::Result<Response> {
        let mut body = json!({ "model": "fast", "input": TURN });
        for (name, value) in members.as_object().unwrap() {
            body[name] = value.clone();
        }
        Ok(self.post(RESPONSES, &body).send().await?)
    }
}

fn usage() -> Value {
    json!({ "input_tokens": 30, "input_tokens_details": { "cached_tokens": 10, "cache_write_tokens": 0 }, "output_tokens": 4,
        "output_tokens_details": { "reasoning_tokens": 2 }, "total_tokens": 34 })
}

/// The events of a stream: each has the name that its type repeats, and those of the API are counted without a gap.
fn counted(text: &str) -> Vec<Value> {
    let mut numbers = 0_u64..;
    let mut read = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        if name.starts_with("response.") {
            assert_eq!(data["sequence_number"].as_u64(), numbers.next(), "{text}");
        }
        data
    };
    text.split_terminator("\n\n").filter(|event| !event.starts_with(':')).map(&mut read).collect()
}

fn said(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["delta"].as_str()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> =
        events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect();
    kinds.dedup();
    kinds
}

const OF_A_TEXT: [&str; 9] = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
];

#[tokio::test]
async fn a_response_goes_to_its_own_api_as_it_came() -> anyhow::Result<()> {
    let world = World::of("openai", "system_prompt = 'Be kind.'").await?;
    let edge = world.edge().await?;
    next(&world.upstream, says_for("Full tonight.", USED));
    let body = json!({
        "x_unknown": { "kept": 1.50 }, "instructions": "own", "store": true, "ragmux": { "include_context": true },
        "metadata": { "team": "a" }, "input": [{ "role": "user", "content": TURN }],
    });
    let answer = edge.responses(body.clone()).await?;
    assert_eq!(header(&answer, "x-ragmux-model"), Some("real-chat"));
    assert_eq!(header(&answer, "x-ragmux-dropped"), Some("store"));
    let answer = body_of(answer, 200).await;
    assert_eq!(
        (&answer["model"], &answer["output"][0]["content"][0]["text"]),
        (&json!("fast"), &json!("Full tonight."))
    );
    assert_eq!((&answer["instructions"], &answer["store"], &answer["usage"]), (&json!("own"), &json!(false), &usage()));
    assert!(answer["ragmux"].is_object());
    let call = world.upstream.log(0).calls.remove(0);
    assert_eq!(call.path, RESPONSES);
    let mut sent = body;
    sent.as_object_mut().unwrap().remove("ragmux");
    sent["model"] = json!("real-chat");
    sent["store"] = json!(false);
    sent["instructions"] = json!("Be kind.\n\nown");
    assert_eq!(call.body, sent);
    let logged = world.the_logged_call().await?;
    assert_eq!(
        (logged.operation.as_str(), logged.prompt_tokens, logged.completion_tokens),
        ("chat", Some(30), Some(4))
    );
    edge.stop().await
}

#[tokio::test]
async fn a_stream_is_told_by_the_grammar_of_the_api_whoever_answers() -> anyhow::Result<()> {
    for (provider, path) in [("openai", RESPONSES), ("custom_openai", CHAT), ("anthropic", "/v1/messages")] {
        let world = World::of(provider, "").await?;
        let edge = world.edge().await?;
        let mut plain = None;
        for split_bytes in [None, Some(1), Some(7)] {
            next(&world.upstream, Behaviour { split_bytes, ..says_for("Full tonight.", USED) });
            let answer = edge.responses(json!({ "stream": true, "instructions": "own" })).await?;
            assert_eq!(header(&answer, "content-type"), Some("text/event-stream; charset=utf-8"));
            let events = counted(&answer.text().await?);
            assert_eq!((kinds(&events), said(&events).as_str()), (OF_A_TEXT.to_vec(), "Full tonight."), "{provider}");
            let (first, last) = (&events[0]["response"], &events.last().unwrap()["response"]);
            assert_eq!(
                (&first["id"], &first["model"], &first["status"]),
                (&last["id"], &json!("fast"), &json!("in_progress"))
            );
            assert_eq!(
                (&last["model"], &last["instructions"], &last["store"]),
                (&json!("fast"), &json!("own"), &json!(false))
            );
            assert_eq!(last["output"][0]["content"][0]["text"], "Full tonight.");
            assert_eq!(last["usage"]["input_tokens"], 30);
            assert_eq!(*plain.get_or_insert(events.len()), events.len());
        }
        next(&world.upstream, says_for("Full tonight.", USED));
        let asked = json!({ "stream": true, "ragmux": { "include_context": true } });
        let events = counted(&edge.responses(asked).await?.text().await?);
        let (own, last) = (&events[events.len() - 2], &events[events.len() - 1]);
        assert_eq!((&own["type"], &last["type"]), (&json!("ragmux.sources"), &json!("response.completed")));
        assert!(own["ragmux"]["sources"].is_array());
        assert!(world.upstream.log(0).calls.iter().all(|call| call.path == path));
        for logged in world.logged(4).await? {
            assert_eq!((logged.status, logged.prompt_tokens, logged.completion_tokens), (200, Some(30), Some(4)));
        }
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_response_is_answered_by_providers_of_other_dialects() -> anyhow::Result<()> {
    for provider in ["custom_openai", "anthropic"] {
        let world = World::of(provider, "").await?;
        let edge = world.edge().await?;
        next(&world.upstream, says_for("Full tonight.", USED));
        let tool = json!({ "type": "function", "name": "tide", "parameters": { "type": "object" } });
        let members = json!({ "instructions": "Be brief.", "tools": [tool], "temperature": 0.5, "truncation": "auto",
            "max_output_tokens": 50, "metadata": { "team": "a" } });
        let answer = edge.responses(members).await?;
        assert_eq!(header(&answer, "x-ragmux-dropped"), Some("truncation"));
        let answer = body_of(answer, 200).await;
        assert_eq!(
            (&answer["object"], &answer["status"], &answer["model"]),
            (&json!("response"), &json!("completed"), &json!("fast"))
        );
        assert_eq!(answer["output"][0]["content"][0]["text"], "Full tonight.");
        assert_eq!((&answer["usage"]["input_tokens"], &answer["usage"]["output_tokens"]), (&json!(30), &json!(4)));
        for (name, value) in [
            ("instructions", json!("Be brief.")),
            ("temperature", json!(0.5)),
            ("max_output_tokens", json!(50)),
            ("metadata", json!({ "team": "a" })),
            ("tool_choice", json!("auto")),
        ] {
            assert_eq!(answer[name], value, "{name}");
        }
        let call = world.upstream.log(0).calls.remove(0);
        let name = if provider == "anthropic" {
            &call.body["tools"][0]["name"]
        } else {
            &call.body["tools"][0]["function"]["name"]
        };
        assert_eq!((name, &call.body["max_tokens"]), (&json!("tide"), &json!(50)));
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn tools_thoughts_and_schemas_make_their_round() -> anyhow::Result<()> {
    let world = World::of("anthropic", "").await?;
    let edge = world.edge().await?;
    let body = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "real-chat", "content": [
        { "type": "thinking", "thinking": "The tide.", "signature": "sig" },
        { "type": "redacted_thinking", "data": "hidden" },
        { "type": "tool_use", "id": "toolu_1", "name": "tide", "input": { "port": "Brest" } }],
        "stop_reason": "tool_use", "usage": { "input_tokens": 9, "output_tokens": 8 } });
    next(&world.upstream, raw("application/json", body.to_string()));
    let tools = json!([{ "type": "function", "name": "tide", "parameters": { "type": "object" }, "strict": true }]);
    let question = json!({ "role": "user", "content": "Tide?" });
    let asked =
        json!({ "input": [question], "tools": tools, "max_output_tokens": 4096, "reasoning": { "effort": "medium" } });
    let answer = body_of(edge.responses(asked.clone()).await?, 200).await;
    let output = answer["output"].as_array().unwrap().clone();
    let types: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["reasoning", "reasoning", "function_call"]);
    assert_eq!(
        (&output[2]["call_id"], &output[2]["name"], &output[2]["arguments"]),
        (&json!("toolu_1"), &json!("tide"), &json!("{\"port\":\"Brest\"}"))
    );
    // As clients do: all of the output goes back, and the result behind it.
    let mut input = vec![question];
    input.extend(output);
    input.push(json!({ "type": "function_call_output", "call_id": "toolu_1", "output": "high" }));
    let mut asked = asked;
    asked["input"] = json!(input);
    next(&world.upstream, says_for("It is high.", USED));
    body_of(edge.responses(asked).await?, 200).await;
    let call = world.upstream.log(0).calls.remove(1);
    let messages = &call.body["messages"];
    assert_eq!(
        messages[1]["content"],
        json!([
            { "type": "thinking", "thinking": "The tide.", "signature": "sig" },
            { "type": "redacted_thinking", "data": "hidden" },
            { "type": "tool_use", "id": "toolu_1", "name": "tide", "input": { "port": "Brest" } },
        ])
    );
    assert_eq!(messages[2]["content"][0]["tool_use_id"], "toolu_1");
    assert_eq!(call.body["thinking"]["type"], "enabled");
    edge.stop().await?;

    let world = World::new().await?;
    let edge = world.edge().await?;
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let format = json!({ "type": "json_schema", "name": "n", "schema": schema, "strict": true });
    let answer = body_of(edge.responses(json!({ "text": { "format": format } })).await?, 200).await;
    assert_eq!(answer["text"]["format"], format);
    let call = world.upstream.log(0).calls.remove(0);
    assert_eq!(
        call.body["response_format"],
        json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema, "strict": true } })
    );
    edge.stop().await
}

#[tokio::test]
async fn what_needs_a_memory_is_refused_and_nothing_is_found() -> anyhow::Result<()> {
    let world = World::of("openai", "requests_per_minute = 1").await?;
    let edge = world.edge().await?;
    early_in_a_minute().await?;
    for (members, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "background": true }), "background"),
        (json!({ "prompt": { "id": "pmpt_1" } }), "prompt"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "msg_1" }] }), "input[0].type"),
    ] {
        let body = body_of(edge.responses(members).await?, 400).await;
        let error = &body["error"];
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(param)));
    }
    for (method, path) in [
        (Method::GET, "/v1/responses/resp_1"),
        (Method::DELETE, "/v1/responses/resp_1"),
        (Method::POST, "/v1/responses/resp_1/cancel"),
        (Method::GET, "/v1/responses/resp_1/input_items"),
    ] {
        let asked = edge.bare(method, path).bearer_auth(world.key.secret().expose());
        let (status, kind, code) = error_of(asked.send().await?).await;
        assert_eq!((status, kind.as_str(), code), (404, "invalid_request_error", json!("response_not_found")));
    }
    let no_key = error_of(edge.bare(Method::GET, "/v1/responses/resp_1").send().await?).await;
    assert_eq!(no_key.0, 401);
    assert!(world.upstream.log(0).calls.is_empty());
    // None of them counts.
    body_of(edge.responses(json!({})).await?, 200).await;
    let (status, kind, code) = error_of(edge.responses(json!({ "stream": true })).await?).await;
    assert_eq!((status, kind.as_str(), code), (429, "rate_limit_exceeded", json!("rate_limit_rpm")));
    edge.stop().await
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_the_response_that_failed() -> anyhow::Result<()> {
    for (provider, events) in [("openai", 5), ("custom_openai", 2), ("anthropic", 4)] {
        let world = World::of(provider, "").await?;
        let edge = world.edge().await?;
        next(&world.upstream, Behaviour { cut_after_events: Some(events), ..says_for("Full tonight.", USED) });
        let events = counted(&edge.responses(json!({ "stream": true })).await?.text().await?);
        let last = events.last().unwrap();
        assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
        assert_eq!(last["response"]["error"]["code"], "upstream_truncated");
        assert_eq!(
            (&last["response"]["id"], &last["response"]["model"]),
            (&events[0]["response"]["id"], &json!("fast"))
        );
        assert!(!kinds(&events).contains(&"completed"));
        // Before the first event it is an answer of its own.
        next(&world.upstream, failing(400));
        assert_eq!(error_of(edge.responses(json!({ "stream": true })).await?).await.0, 400);
        let logged = world.logged(2).await?;
        assert_eq!(
            (logged[0].state.as_str(), logged[0].error_code.as_deref()),
            ("estimated", Some("upstream_truncated"))
        );
        edge.stop().await?;
    }
    let world = World::of("openai", "").await?;
    let edge = world.edge().await?;
    let begun = json!({ "type": "response.created", "sequence_number": 0, "response": { "id": "resp_1", "model": "real-chat" } });
    let failed = json!({ "type": "response.failed", "sequence_number": 1, "response": { "id": "resp_1", "status": "failed",
        "error": { "code": "rate_limit_exceeded", "message": "Slow down." } } });
    let transcript = format!("event: response.created\ndata: {begun}\n\nevent: response.failed\ndata: {failed}\n\n");
    next(&world.upstream, raw("text/event-stream", transcript));
    let events = counted(&edge.responses(json!({ "stream": true })).await?.text().await?);
    assert_eq!(kinds(&events), ["created", "failed"]);
    assert_eq!(events[1]["response"]["error"]["message"], "Slow down.");
    edge.stop().await
}

#[tokio::test]
async fn a_bound_that_is_kept_ends_a_stream_properly() -> anyhow::Result<()> {
    for provider in ["openai", "custom_openai", "anthropic"] {
        let world = World::of(provider, "enforcement = 'hard', tokens_per_day = 1000000").await?;
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
        let events = counted(&edge.responses(json!({ "stream": true, "max_output_tokens": 10 })).await?.text().await?);
        let text = said(&events);
        let tokens = answer_tokens(&text);
        assert!(tokens <= 10 && answer_tokens(&format!("{text}word ")) > 10, "{text}");
        assert_eq!(
            kinds(&events[events.len() - 4..]),
            ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
        );
        let last = &events.last().unwrap()["response"];
        assert_eq!((&last["status"], &last["model"]), (&json!("incomplete"), &json!("fast")));
        assert_eq!(last["incomplete_details"], json!({ "reason": "max_output_tokens" }));
        assert_eq!(
            (&last["usage"]["input_tokens"], &last["usage"]["output_tokens"]),
            (&json!(turn_tokens()), &json!(tokens))
        );
        assert_eq!(
            (&last["output"][0]["content"][0]["text"], &last["output"][0]["status"]),
            (&json!(text), &json!("incomplete"))
        );
        let logged = world.the_logged_call().await?;
        assert_eq!((logged.status, logged.charged_tokens), (200, tokens + turn_tokens()));
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_pays_what_was_delivered() -> anyhow::Result<()> {
    for provider in ["openai", "anthropic"] {
        let world = World::of(provider, "").await?;
        let edge = world.edge().await?;
        next(
            &world.upstream,
            Behaviour { hold_after_events: Some(7), ..says_for("one two three four five six", USED) },
        );
        let mut answer = edge.responses(json!({ "stream": true })).await?;
        let mut text = String::new();
        while said(&counted(&text[..text.rfind("\n\n").map_or(0, |at| at + 2)])).is_empty() {
            let chunk = tokio::time::timeout(testkit::DEADLINE, answer.chunk()).await??.unwrap();
            text.push_str(std::str::from_utf8(&chunk)?);
        }
        world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
        drop(answer);
        world.upstream_until(Wait { aborted: Some(1), open: Some(0), ..Wait::default() }).await?;
        let logged = world.the_logged_call().await?;
        assert_eq!((logged.status, logged.state.as_str()), (499, "estimated"), "{provider}");
        // Anthropic tells the prompt's tokens at the beginning.
        let output = logged.charged_tokens - logged.prompt_tokens.unwrap_or_else(turn_tokens);
        let whole = answer_tokens("one two three four five six");
        assert!(output >= answer_tokens("one") && output <= whole, "{output} of {whole}");
        edge.stop().await?;
    }
    Ok(())
}
