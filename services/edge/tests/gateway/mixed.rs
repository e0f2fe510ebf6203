//! Conversations with thoughts and tools on a route that leads to providers of two dialects.

use std::collections::BTreeMap;

use reqwest::Response;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use upstream::{Behaviour, Handle, Options, Script};

use crate::script::{EVENTS, answers, failing, next, raw, says};
use crate::stream::events;
use crate::world::{CHAT, Edge, World, body_of, header};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const PATHS: [&str; 3] = [MESSAGES, CHAT, RESPONSES];

/// A provider: its type, a model, and where its API is on the scripted one.
type Provider = (&'static str, &'static str, &'static str);

const GEMINI: Provider = ("gemini", "gemini-3-pro-preview", "/v1beta");
const ANTHROPIC: Provider = ("anthropic", "claude", "/v1");
const MISTRAL: Provider = ("mistral", "mistral-large", "/v1");
const SERVER: Provider = ("custom_openai", "kimi", "/v1");

/// A world whose route leads to two providers.
struct Mixed {
    world: World,
    second: Handle,
}

impl Mixed {
    /// The first one is asked first, and the second one when that fails.
    async fn new(first: Provider, second: Provider) -> anyhow::Result<Self> {
        Self::with(first, second, 1, 1).await
    }

    /// The second one is in that group, and the first one in group 0 with a weight of 1.
    async fn with(first: Provider, second: Provider, group: i16, weight: i32) -> anyhow::Result<Self> {
        let world = World::new().await?;
        let handle = upstream::serve(TcpListener::bind("127.0.0.1:0").await?, Options::scripted())?;
        let connection = world.database.insert_connection("second", &handle.base_url(), second.1).await?;
        world.database.add_target(world.route, connection, group, weight).await?;
        for (id, (kind, model, path)) in [(world.connection, first), (connection, second)] {
            let change = format!(
                "provider_type = '{kind}', model_name = '{model}', base_url = replace(base_url, '/v1', '{path}')"
            );
            world.database.change_connection(id, &change).await?;
        }
        Ok(Self { world, second: handle })
    }
}

/// A call of a tool after a thought, or without one, as a provider answers it.
fn calls_tool(provider: Provider, is_streamed: bool) -> Behaviour {
    if provider == GEMINI {
        let answer = json!({ "candidates": [{ "finishReason": "STOP", "content": { "role": "model", "parts": [
            { "text": "deep thought", "thought": true },
            { "functionCall": { "name": "tide", "args": {} }, "thoughtSignature": "R1NJRw==" }] } }] });
        return if is_streamed { raw(EVENTS, format!("data: {answer}\n\n")) } else { answers(&answer) };
    }
    if provider == ANTHROPIC {
        return if is_streamed { raw(EVENTS, anthropics_stream()) } else { answers(&anthropics()) };
    }
    let id = if provider == MISTRAL { "D681PevKs" } else { "functions.tide:0" };
    let call = json!({ "index": 0, "id": id, "type": "function", "function": { "name": "tide", "arguments": "{}" } });
    let said = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
    let choice = |name: &str| json!({ "index": 0, name: said, "finish_reason": "tool_calls" });
    let whole = |choice: Value| json!({ "id": "c-1", "model": "m", "created": 1, "choices": [choice] });
    if is_streamed {
        raw(EVENTS, format!("data: {}\n\ndata: [DONE]\n\n", whole(choice("delta"))))
    } else {
        answers(&whole(choice("message")))
    }
}

fn anthropics() -> Value {
    json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [
        { "type": "thinking", "thinking": "deep thought", "signature": "U0lH" },
        { "type": "tool_use", "id": "toolu_1", "name": "tide", "input": {} }],
        "stop_reason": "tool_use", "usage": { "input_tokens": 9, "output_tokens": 8 } })
}

fn anthropics_stream() -> String {
    let whole = anthropics();
    let usage = &whole["usage"];
    let start = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
        "stop_reason": null, "usage": usage });
    let thought = json!({ "type": "thinking", "thinking": "", "signature": "" });
    let delta = |index: u64, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
    let events = [
        json!({ "type": "message_start", "message": start }),
        json!({ "type": "content_block_start", "index": 0, "content_block": thought }),
        delta(0, json!({ "type": "thinking_delta", "thinking": "deep thought" })),
        delta(0, json!({ "type": "signature_delta", "signature": "U0lH" })),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block": whole["content"][1] }),
        delta(1, json!({ "type": "input_json_delta", "partial_json": "{}" })),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": usage }),
        json!({ "type": "message_stop" }),
    ];
    let event = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    events.iter().map(event).collect()
}

/// Asks with a tool, and gives its result the second time, where the answer to the first is given.
async fn ask(edge: &Edge, path: &str, first: Option<&Value>, is_streamed: bool) -> anyhow::Result<Response> {
    let parameters = json!({ "type": "object" });
    let mut said = vec![json!({ "role": "user", "content": "Tide?" })];
    let mut body = match path {
        MESSAGES => {
            if let Some(content) = first.map(|answer| &answer["content"]) {
                let call = content.as_array().unwrap().iter().find(|block| block["type"] == "tool_use").unwrap();
                let result = json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "high" });
                said.push(json!({ "role": "assistant", "content": content }));
                said.push(json!({ "role": "user", "content": [result] }));
            }
            json!({ "max_tokens": 4096, "messages": said, "thinking": { "type": "enabled", "budget_tokens": 1024 },
                "tools": [{ "name": "tide", "input_schema": parameters }] })
        }
        RESPONSES => {
            if let Some(output) = first.map(|answer| answer["output"].as_array().unwrap()) {
                let call = output.iter().find(|item| item["type"] == "function_call").unwrap();
                said.extend(output.iter().cloned());
                said.push(json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "high" }));
            }
            json!({ "max_output_tokens": 4096, "input": said, "reasoning": { "effort": "medium" },
                "tools": [{ "type": "function", "name": "tide", "parameters": parameters }] })
        }
        _ => {
            if let Some(message) = first.map(|answer| &answer["choices"][0]["message"]) {
                said.push(message.clone());
                let id = &message["tool_calls"][0]["id"];
                said.push(json!({ "role": "tool", "tool_call_id": id, "content": "high" }));
            }
            json!({ "max_tokens": 4096, "messages": said, "reasoning_effort": "medium",
                "tools": [{ "type": "function", "function": { "name": "tide", "parameters": parameters } }] })
        }
    };
    body["model"] = json!("fast");
    body["stream"] = json!(is_streamed);
    Ok(edge.post(path, &body).send().await?)
}

/// An answer, whole or put together as client libraries do.
async fn read(path: &str, answer: Response, is_streamed: bool) -> anyhow::Result<Value> {
    if !is_streamed {
        return Ok(body_of(answer, 200).await);
    }
    assert_eq!(answer.status(), 200);
    let text = answer.text().await?;
    let (events, is_done) = events(&text);
    Ok(match path {
        MESSAGES => {
            assert_eq!(events.last().unwrap()["type"], "message_stop", "{text}");
            json!({ "content": blocks(&events) })
        }
        RESPONSES => {
            let last = events.last().unwrap();
            assert_eq!(last["type"], "response.completed", "{text}");
            last["response"].clone()
        }
        _ => {
            assert!(is_done, "{text}");
            json!({ "choices": [{ "message": message(&events) }] })
        }
    })
}

fn blocks(events: &[Value]) -> Vec<Value> {
    let (mut blocks, mut input) = (Vec::<Value>::new(), String::new());
    for event in events {
        let delta = &event["delta"];
        match (event["type"].as_str(), blocks.last_mut()) {
            (Some("content_block_start"), _) => blocks.push(event["content_block"].clone()),
            (Some("content_block_delta"), Some(block)) => {
                for name in ["thinking", "text"] {
                    if let Some(piece) = delta[name].as_str() {
                        block[name] = json!(format!("{}{piece}", block[name].as_str().unwrap()));
                    }
                }
                if delta["signature"].is_string() {
                    block["signature"] = delta["signature"].clone();
                }
                input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            (Some("content_block_stop"), Some(block)) if block["type"] == "tool_use" => {
                block["input"] = serde_json::from_str(&std::mem::take(&mut input)).unwrap();
            }
            _ => {}
        }
    }
    blocks
}

fn message(chunks: &[Value]) -> Value {
    let mut message = json!({ "role": "assistant", "content": "" });
    let add = |to: &mut Value, piece: &Value| {
        if let Some(piece) = piece.as_str() {
            *to = json!(format!("{}{piece}", to.as_str().unwrap_or_default()));
        }
    };
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        for name in ["content", "reasoning_content"] {
            add(&mut message[name], &delta[name]);
        }
        for detail in delta["reasoning_details"].as_array().into_iter().flatten() {
            let at = usize::try_from(detail["index"].as_u64().unwrap()).unwrap();
            let details = message.as_object_mut().unwrap().entry("reasoning_details").or_insert_with(|| json!([]));
            assert_eq!(details.as_array().unwrap().len(), at, "each comes whole");
            details.as_array_mut().unwrap().push(detail.clone());
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call["id"].is_string() {
                message["tool_calls"] = json!([call]);
            } else {
                add(&mut message["tool_calls"][0]["function"]["arguments"], &call["function"]["arguments"]);
            }
        }
    }
    message
}

/// What the second provider is asked once the first one has answered and fails, and what is listed as dropped.
async fn handed_over(
    path: &str,
    first: Provider,
    second: Provider,
    is_streamed: bool,
) -> anyhow::Result<(Value, Vec<String>)> {
    let Mixed { world, second: other } = Mixed::new(first, second).await?;
    let edge = world.edge().await?;
    next(&world.upstream, calls_tool(first, is_streamed));
    let answer = read(path, ask(&edge, path, None, is_streamed).await?, is_streamed).await?;
    next(&world.upstream, failing(401));
    next(&other, says("It is high."));
    let answer = ask(&edge, path, Some(&answer), is_streamed).await?;
    let dropped = header(&answer, "x-ragmux-dropped").unwrap_or_default().split(", ").map(str::to_owned).collect();
    let answer = read(path, answer, is_streamed).await?;
    assert!(answer.to_string().contains("It is high."), "{answer}");
    edge.stop().await?;
    let asked = other.log(0).calls.pop().unwrap().body;
    assert!(!asked.to_string().contains("ragmux-"), "{asked}");
    Ok((asked, dropped))
}

#[tokio::test]
async fn anthropic_goes_on_where_gemini_thought_without_its_thoughts() -> anyhow::Result<()> {
    for (path, listed) in [
        (MESSAGES, "messages[].content[].thinking"),
        (CHAT, "messages[].reasoning_content"),
        (RESPONSES, "input[].summary"),
    ] {
        for is_streamed in [false, true] {
            let (asked, dropped) = handed_over(path, GEMINI, ANTHROPIC, is_streamed).await?;
            let said = asked["messages"][1]["content"].as_array().unwrap();
            let kinds: Vec<&str> = said.iter().map(|block| block["type"].as_str().unwrap()).collect();
            assert_eq!(kinds, ["tool_use"], "{path}: {asked}");
            assert_eq!(asked["messages"][2]["content"][0]["tool_use_id"], said[0]["id"]);
            assert!(!asked.to_string().contains("R1NJRw"), "{asked}");
            // A turn that began without its thoughts may not have any.
            assert_ne!(asked["thinking"]["type"], "enabled", "{path}");
            assert!(dropped.iter().any(|path| path == listed), "{path}: {dropped:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn gemini_goes_on_where_anthropic_thought_without_its_signature() -> anyhow::Result<()> {
    for (path, listed) in [
        (MESSAGES, "messages[].content[].signature"),
        (CHAT, "messages[].reasoning_details[].signature"),
        (RESPONSES, "input[].encrypted_content"),
    ] {
        for is_streamed in [false, true] {
            let (asked, dropped) = handed_over(path, ANTHROPIC, GEMINI, is_streamed).await?;
            assert!(!asked.to_string().contains("U0lH"), "{path}: {asked}");
            let parts = asked["contents"][1]["parts"].as_array().unwrap();
            assert_eq!(parts[0], json!({ "text": "deep thought", "thought": true }));
            assert_eq!(parts[1]["functionCall"]["name"], "tide");
            assert!(dropped.iter().any(|path| path == listed), "{path}: {dropped:?}");
        }
    }
    Ok(())
}

/// The ids of the call and of the result in what a provider is asked.
fn ids(asked: &Value) -> [String; 2] {
    let text = |pointers: [&str; 2]| {
        let value = pointers.iter().find_map(|pointer| asked.pointer(pointer)?.as_str());
        value.unwrap_or_else(|| panic!("{asked}")).to_owned()
    };
    let block = |name: &str| {
        let blocks = asked["messages"].as_array().unwrap().iter().flat_map(|message| message["content"].as_array());
        blocks.flatten().find_map(|block| block[name].as_str()).map(str::to_owned)
    };
    match (block("id"), block("tool_use_id")) {
        (Some(call), Some(result)) => [call, result],
        _ => [
            text(["/messages/1/tool_calls/0/id", "/messages/1/tool_calls/0/id"]),
            text(["/messages/2/tool_call_id", "/messages/2/tool_call_id"]),
        ],
    }
}

#[tokio::test]
async fn calls_that_one_provider_made_have_ids_that_the_next_one_takes() -> anyhow::Result<()> {
    let is_word = |id: &str| id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let is_nine = |id: &str| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    for path in PATHS {
        for is_streamed in [false, true] {
            let [call, result] = ids(&handed_over(path, SERVER, ANTHROPIC, is_streamed).await?.0);
            assert!(is_word(&call) && call == result && call != "functions.tide:0", "{path}: {call} {result}");
            let [call, result] = ids(&handed_over(path, SERVER, MISTRAL, is_streamed).await?.0);
            assert!(is_nine(&call) && call == result, "{path}: {call} {result}");
            let [call, result] = ids(&handed_over(path, ANTHROPIC, MISTRAL, is_streamed).await?.0);
            assert!(is_nine(&call) && call == result, "{path}: {call} {result}");
            let kept = ids(&handed_over(path, MISTRAL, ANTHROPIC, is_streamed).await?.0);
            assert_eq!(kept, ["D681PevKs", "D681PevKs"].map(str::to_owned), "{path}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn whoever_the_lot_falls_on_goes_on_with_the_conversation() -> anyhow::Result<()> {
    let Mixed { world, second } = Mixed::with(GEMINI, ANTHROPIC, 0, 3).await?;
    let edge = world.edge().await?;
    let mut served = BTreeMap::<String, usize>::new();
    for is_streamed in [false, true] {
        for (upstream, provider) in [(&world.upstream, GEMINI), (&second, ANTHROPIC)] {
            let default = Some(calls_tool(provider, is_streamed));
            upstream.script(Script { path: "*".to_owned(), queue: Vec::new(), default });
        }
        for path in PATHS.iter().cycle().take(18) {
            let mut before = None;
            for _ in 0..2 {
                let answer = ask(&edge, path, before.as_ref(), is_streamed).await?;
                *served.entry(header(&answer, "x-ragmux-connection").unwrap().to_owned()).or_default() += 1;
                before = Some(read(path, answer, is_streamed).await?);
            }
        }
    }
    // With three in four calls for the second one, the odds against this are above ten thousand to one.
    assert!(served["provider"] > 0 && served["provider"] < served["second"], "{served:?}");
    let asked = |upstream: &Handle| upstream.log(0).calls.into_iter().map(|call| call.body).collect::<Vec<_>>();
    let (geminis, anthropics) = (asked(&world.upstream), asked(&second));
    assert_eq!((geminis.len(), anthropics.len()), (served["provider"], served["second"]));
    for (bodies, foreign, own) in [(geminis, "U0lH", "R1NJRw=="), (anthropics, "R1NJRw", "U0lH")] {
        let texts: Vec<String> = bodies.iter().map(Value::to_string).collect();
        assert!(texts.iter().all(|text| !text.contains("ragmux-") && !text.contains(foreign)), "{texts:?}");
        // What is its own it gets back.
        assert!(texts.iter().any(|text| text.contains(own)), "{texts:?}");
    }
    edge.stop().await
}
