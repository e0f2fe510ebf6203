//! Conversations with thoughts and tools on a route that leads to providers of two dialects.

use reqwest::Response;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use upstream::{Behaviour, Handle, Options, Raw, Script, ScriptedError};

use crate::world::{CHAT, Edge, World, body_of, header};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// A world whose route leads to Gemini and to Anthropic, to the one when the other fails.
struct Mixed {
    world: World,
    anthropic: Handle,
}

impl Mixed {
    /// The group of Anthropic is 0 or 2, that of Gemini 1.
    async fn new(group: i16) -> anyhow::Result<Self> {
        let world = World::new().await?;
        let anthropic = upstream::serve(TcpListener::bind("127.0.0.1:0").await?, Options::scripted())?;
        let connection = world.database.insert_connection("anthropic", &anthropic.base_url(), "claude").await?;
        world
            .database
            .execute("UPDATE model_connections SET provider_type = 'anthropic' WHERE name = 'anthropic'")
            .await?;
        world
            .database
            .execute(
                "UPDATE model_connections SET provider_type = 'gemini', model_name = 'gemini-3-pro-preview',
                     base_url = replace(base_url, '/v1', '/v1beta') WHERE name = 'provider'",
            )
            .await?;
        world.database.execute("UPDATE route_targets SET group_number = 1").await?;
        world.database.add_target(world.route, connection, group, 1).await?;
        Ok(Self { world, anthropic })
    }
}

fn next(upstream: &Handle, behaviour: Behaviour) {
    upstream.script(Script { path: "*".to_owned(), queue: vec![behaviour], default: None });
}

fn answers(body: &Value) -> Behaviour {
    let raw = Raw { status: 200, content_type: "application/json".to_owned(), body: body.to_string() };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

fn geminis() -> Behaviour {
    answers(&json!({ "candidates": [{ "finishReason": "STOP", "content": { "role": "model", "parts": [
        { "text": "deep thought", "thought": true },
        { "functionCall": { "name": "tide", "args": {} }, "thoughtSignature": "R1NJRw==" }] } }] }))
}

fn anthropics() -> Behaviour {
    answers(&json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [
        { "type": "thinking", "thinking": "deep thought", "signature": "U0lH" },
        { "type": "tool_use", "id": "toolu_1", "name": "tide", "input": {} }],
        "stop_reason": "tool_use", "usage": { "input_tokens": 9, "output_tokens": 8 } }))
}

/// Asks with a tool, and gives its result the second time, where the answer to the first is given.
async fn ask(edge: &Edge, path: &str, first: Option<&Value>) -> anyhow::Result<Response> {
    let parameters = json!({ "type": "object" });
    let mut said = vec![json!({ "role": "user", "content": "Tide?" })];
    let body = match path {
        MESSAGES => {
            if let Some(content) = first.map(|answer| &answer["content"]) {
                let call = content.as_array().unwrap().iter().find(|block| block["type"] == "tool_use").unwrap();
                let result = json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "high" });
                said.push(json!({ "role": "assistant", "content": content }));
                said.push(json!({ "role": "user", "content": [result] }));
            }
            json!({ "model": "fast", "max_tokens": 4096, "messages": said,
                "thinking": { "type": "enabled", "budget_tokens": 1024 },
                "tools": [{ "name": "tide", "input_schema": parameters }] })
        }
        RESPONSES => {
            if let Some(output) = first.map(|answer| answer["output"].as_array().unwrap()) {
                let call = output.iter().find(|item| item["type"] == "function_call").unwrap();
                said.extend(output.iter().cloned());
                said.push(json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "high" }));
            }
            json!({ "model": "fast", "max_output_tokens": 4096, "input": said, "reasoning": { "effort": "medium" },
                "tools": [{ "type": "function", "name": "tide", "parameters": parameters }] })
        }
        _ => {
            if let Some(message) = first.map(|answer| &answer["choices"][0]["message"]) {
                said.push(message.clone());
                let id = &message["tool_calls"][0]["id"];
                said.push(json!({ "role": "tool", "tool_call_id": id, "content": "high" }));
            }
            json!({ "model": "fast", "max_tokens": 4096, "messages": said, "reasoning_effort": "medium",
                "tools": [{ "type": "function", "function": { "name": "tide", "parameters": parameters } }] })
        }
    };
    Ok(edge.post(path, &body).send().await?)
}

/// What the second provider is asked once the first one has answered and fails, and what is listed as dropped.
async fn handed_over(
    world: &World,
    path: &str,
    first: (&Handle, Behaviour),
    second: &Handle,
) -> anyhow::Result<(Value, String)> {
    let edge = world.edge().await?;
    next(first.0, first.1);
    let answer = body_of(ask(&edge, path, None).await?, 200).await;
    next(first.0, Behaviour { error: Some(ScriptedError::status(401)), ..Behaviour::default() });
    let told = Behaviour { content: Some("It is high.".to_owned()), ..Behaviour::default() };
    next(second, told);
    let answer = ask(&edge, path, Some(&answer)).await?;
    let dropped = header(&answer, "x-ragmux-dropped").unwrap_or_default().to_owned();
    body_of(answer, 200).await;
    edge.stop().await?;
    let call = second.log(0).calls.pop().unwrap();
    Ok((call.body, dropped))
}

#[tokio::test]
async fn anthropic_goes_on_where_gemini_thought_without_its_thoughts() -> anyhow::Result<()> {
    for (path, listed) in [(MESSAGES, "messages[].content[].thinking"), (CHAT, "reasoning"), (RESPONSES, "reasoning")] {
        let mixed = Mixed::new(2).await?;
        let first = (&mixed.world.upstream, geminis());
        let (asked, dropped) = handed_over(&mixed.world, path, first, &mixed.anthropic).await?;
        let said = asked["messages"][1]["content"].as_array().unwrap();
        let kinds: Vec<&str> = said.iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["tool_use"], "{path}: {asked}");
        assert_eq!(asked["messages"][2]["content"][0]["tool_use_id"], said[0]["id"]);
        assert!(!asked.to_string().contains("ragmux-") && !asked.to_string().contains("R1NJRw"), "{asked}");
        // A turn that began without its thoughts may not have any.
        assert_ne!(asked["thinking"]["type"], "enabled", "{path}");
        assert!(dropped.split(", ").any(|path| path == listed), "{path}: {dropped}");
    }
    Ok(())
}

#[tokio::test]
async fn gemini_goes_on_where_anthropic_thought_without_its_signature() -> anyhow::Result<()> {
    for path in [MESSAGES, CHAT, RESPONSES] {
        let mixed = Mixed::new(0).await?;
        let first = (&mixed.anthropic, anthropics());
        let (asked, dropped) = handed_over(&mixed.world, path, first, &mixed.world.upstream).await?;
        assert!(!asked.to_string().contains("U0lH"), "{path}: {asked}");
        let parts = asked["contents"][1]["parts"].as_array().unwrap();
        assert_eq!(parts[0], json!({ "text": "deep thought", "thought": true }));
        assert_eq!(parts[1]["functionCall"]["name"], "tide");
        assert!(dropped.split(", ").any(|path| path == "reasoning.signature"), "{path}: {dropped}");
    }
    Ok(())
}
