//! Clients that nobody here wrote, on the running edge: each is given what its program asks for, by a provider of its own
//! dialect and by one of another.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use testkit::{Project, Stack};
use upstream::{Behaviour, Figures, Raw, Script, ScriptedError};

use crate::packages::{Program, run};

const SAID: &str = "It is cold in Oslo.";
const AFTER: &str = "It is 3 degrees below zero.";
const FORECAST: &str = r#"{"city": "Oslo", "degrees": -3}"#;

/// An API that the upstream speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Api {
    Chat,
    Messages,
    Responses,
}

impl Api {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }

    fn call_id(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses => "call_7",
            Self::Messages => "toolu_7",
        }
    }

    /// An answer that calls the tool `weather` for Oslo.
    fn call(self) -> Behaviour {
        let body = match self {
            Self::Chat => json!({
                "id": "chatcmpl-7", "object": "chat.completion", "created": 1_700_000_000, "model": "demo-chat",
                "choices": [{ "index": 0, "finish_reason": "tool_calls", "message": {
                    "role": "assistant", "content": null, "tool_calls": [{ "id": "call_7", "type": "function",
                        "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\"}" } }] } }],
                "usage": { "prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29 },
            }),
            Self::Messages => json!({
                "id": "msg_7", "type": "message", "role": "assistant", "model": "demo-chat",
                "content": [{ "type": "tool_use", "id": "toolu_7", "name": "weather", "input": { "city": "Oslo" } }],
                "stop_reason": "tool_use", "stop_sequence": null,
                "usage": { "input_tokens": 20, "output_tokens": 9 },
            }),
            Self::Responses => json!({
                "id": "resp_7", "object": "response", "created_at": 1_700_000_000, "status": "completed",
                "model": "demo-chat", "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
                "output": [{ "type": "function_call", "id": "fc_7", "call_id": "call_7", "name": "weather",
                    "arguments": "{\"city\": \"Oslo\"}", "status": "completed" }],
                "usage": { "input_tokens": 20, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": 9,
                    "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 29 },
            }),
        };
        raw("application/json", body.to_string())
    }

    /// The same as a stream, the arguments in pieces.
    fn streamed_call(self) -> Behaviour {
        let body = match self {
            Self::Responses => streamed_response(),
            Self::Chat => {
                let chunk = |delta: Value, finish: Value| {
                    let chunk = json!({
                        "id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1_700_000_000,
                        "model": "demo-chat", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
                    });
                    format!("data: {chunk}\n\n")
                };
                let piece = |json: &str| {
                    let function = json!({ "arguments": json });
                    chunk(json!({ "tool_calls": [{ "index": 0, "function": function }] }), Value::Null)
                };
                let call = json!({ "index": 0, "id": "call_7", "type": "function",
                    "function": { "name": "weather", "arguments": "" } });
                [
                    chunk(json!({ "role": "assistant", "content": null, "tool_calls": [call] }), Value::Null),
                    piece("{\"city\""),
                    piece(": \"Os"),
                    piece("lo\"}"),
                    chunk(json!({}), json!("tool_calls")),
                    "data: [DONE]\n\n".to_owned(),
                ]
                .concat()
            }
            Self::Messages => {
                let event = |event: Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
                let piece = |json: &str| {
                    let delta = json!({ "type": "input_json_delta", "partial_json": json });
                    event(json!({ "type": "content_block_delta", "index": 0, "delta": delta }))
                };
                let message = json!({ "id": "msg_7", "type": "message", "role": "assistant", "model": "demo-chat",
                    "content": [], "stop_reason": null, "stop_sequence": null,
                    "usage": { "input_tokens": 20, "output_tokens": 1 } });
                let block = json!({ "type": "tool_use", "id": "toolu_7", "name": "weather", "input": {} });
                let ending = json!({ "stop_reason": "tool_use", "stop_sequence": null });
                [
                    event(json!({ "type": "message_start", "message": message })),
                    event(json!({ "type": "content_block_start", "index": 0, "content_block": block })),
                    piece("{\"city\""),
                    piece(": \"Os"),
                    piece("lo\"}"),
                    event(json!({ "type": "content_block_stop", "index": 0 })),
                    event(json!({ "type": "message_delta", "delta": ending, "usage": { "output_tokens": 9 } })),
                    event(json!({ "type": "message_stop" })),
                ]
                .concat()
            }
        };
        raw("text/event-stream", body)
    }
}

/// The events of a response that calls the tool `weather` for Oslo.
fn streamed_response() -> String {
    let response = |status: &str, output: Value, usage: Value| {
        json!({ "id": "resp_7", "object": "response", "created_at": 1_700_000_000, "status": status,
            "model": "demo-chat", "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
            "output": output, "usage": usage })
    };
    let call = |status: &str, arguments: &str| {
        json!({ "type": "function_call", "id": "fc_7", "call_id": "call_7", "name": "weather",
            "arguments": arguments, "status": status })
    };
    let read = json!({ "cached_tokens": 0, "cache_write_tokens": 0 });
    let usage = json!({ "input_tokens": 20, "input_tokens_details": read, "output_tokens": 9,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 29 });
    let item = |kind: &str, item: Value| json!({ "type": kind, "output_index": 0, "item": item });
    let of_call = |event: &str, members: Value| {
        let mut about = json!({ "type": format!("response.function_call_arguments.{event}"), "item_id": "fc_7",
            "output_index": 0 });
        about.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        about
    };
    let piece = |json: &str| of_call("delta", json!({ "delta": json }));
    let made = call("completed", r#"{"city": "Oslo"}"#);
    let events = [
        json!({ "type": "response.created", "response": response("in_progress", json!([]), Value::Null) }),
        item("response.output_item.added", call("in_progress", "")),
        piece("{\"city\""),
        piece(": \"Os"),
        piece("lo\"}"),
        of_call("done", json!({ "name": "weather", "arguments": r#"{"city": "Oslo"}"# })),
        item("response.output_item.done", made.clone()),
        json!({ "type": "response.completed", "response": response("completed", json!([made]), usage) }),
    ];
    let numbered = (0..).zip(events).map(|(number, mut event)| {
        event["sequence_number"] = json!(number);
        format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
    });
    numbered.collect()
}

/// Two vectors, which some servers give as base64 and others as numbers, whatever they are asked for.
const VECTORS: [[f32; 3]; 2] = [[0.1, -1.25, 3.0e-8], [0.5, 16_777_215.0, -0.0]];

fn vectors(as_base64: bool) -> Behaviour {
    let vector = |vector: [f32; 3]| match as_base64 {
        true => json!(STANDARD.encode(vector.map(f32::to_le_bytes).concat())),
        false => json!(vector),
    };
    let data = (0..).zip(VECTORS);
    let data: Vec<_> = data
        .map(|(index, values)| json!({ "object": "embedding", "index": index, "embedding": vector(values) }))
        .collect();
    let usage = json!({ "prompt_tokens": 2, "total_tokens": 2 });
    let body = json!({ "object": "list", "model": "demo-embed", "data": data, "usage": usage });
    raw("application/json", body.to_string())
}

/// Numbers as a program prints them, which has read them from 32-bit floats.
fn numbers(vectors: &Value) -> Vec<Vec<f64>> {
    let vectors = vectors.as_array().unwrap();
    vectors.iter().map(|vector| vector.as_array().unwrap().iter().map(|of| of.as_f64().unwrap()).collect()).collect()
}

fn sent() -> Vec<Vec<f64>> {
    VECTORS.iter().map(|vector| vector.iter().copied().map(f64::from).collect()).collect()
}

fn raw(content_type: &str, body: String) -> Behaviour {
    Behaviour { raw: Some(Raw { status: 200, content_type: content_type.to_owned(), body }), ..Behaviour::default() }
}

fn says(text: &str) -> Behaviour {
    let figures = Figures { prompt_tokens: 20, completion_tokens: 6, ..Figures::default() };
    Behaviour { content: Some(text.to_owned()), figures: Some(figures), ..Behaviour::default() }
}

fn limits() -> Behaviour {
    let error = ScriptedError { message: "slow down please".to_owned(), ..ScriptedError::status(429) };
    // A provider that asks for longer than eight seconds is not waited for.
    let error = ScriptedError { code: Some("slow".to_owned()), retry_after: Some("60".to_owned()), ..error };
    Behaviour { error: Some(error), ..Behaviour::default() }
}

/// An edge with a project whose routes `chat`, `claude` and `native` lead to an OpenAI-shaped provider, to Anthropic, and to
/// OpenAI, which has the Responses API.
struct World {
    stack: Stack,
    project: Project,
    url: String,
}

impl World {
    async fn start() -> anyhow::Result<Self> {
        let stack = Stack::builder().edges(1).start().await?;
        let project = stack.project("p", json!({ "store_id": null })).await?;
        let admin = stack.admin().await?;
        let base_url = stack.upstream.base_url();
        let claude = json!({ "name": "claude", "provider_type": "anthropic", "base_url": base_url,
            "model_name": "demo-chat", "api_key": "sk-ant-test" });
        let claude = admin.send(Method::POST, "/models", Some(claude)).await?["id"].clone();
        let embed = json!({ "name": "embed", "provider_type": "custom_openai", "base_url": base_url,
            "model_name": "demo-embed" });
        let embed = admin.send(Method::POST, "/models", Some(embed)).await?["id"].clone();
        let native = json!({ "name": "native", "provider_type": "openai", "base_url": base_url,
            "model_name": "demo-chat", "api_key": "sk-test" });
        let native = admin.send(Method::POST, "/models", Some(native)).await?["id"].clone();
        for (name, connection) in [("claude", claude), ("embed", embed), ("native", native)] {
            let route = json!({ "name": name, "groups": [[{ "connection_id": connection }]] });
            admin.send(Method::POST, &format!("/projects/{}/routes", project.id), Some(route)).await?;
        }
        let url = format!("{}/v1", stack.edge_url(0)?.trim_end_matches("/v1"));
        Ok(Self { stack, project, url })
    }

    /// What the next calls to an API of the upstream meet.
    fn script(&self, api: Api, queue: Vec<Behaviour>) {
        self.stack.upstream.script(Script { path: api.path().to_owned(), queue, default: Some(says(SAID)) });
    }

    /// The next call for vectors is answered in one form or the other.
    fn embeds(&self, as_base64: bool) {
        let (path, queue) = ("/v1/embeddings".to_owned(), vec![vectors(as_base64)]);
        self.stack.upstream.script(Script { path, queue, ..Script::default() });
    }

    async fn run(&self, program: Program, arguments: &[&str], model: &str) -> anyhow::Result<Option<Value>> {
        let environment = [
            ("RAGMUX_BASE_URL", self.url.as_str()),
            ("RAGMUX_API_KEY", self.project.key.as_str()),
            ("RAGMUX_MODEL", model),
        ];
        run(program, arguments, &environment).await
    }

    /// Every call was settled, and what it was charged is what the log says.
    async fn finish(self) -> anyhow::Result<()> {
        let project = testkit::ProjectId(self.project.id);
        let totals = testkit::eventually("every call is settled", || async {
            let totals = self.stack.database.tier_totals(project).await?;
            Ok((totals.open_rows == 0).then_some(totals))
        })
        .await?;
        assert_eq!((totals.day_tokens_held, totals.day_tokens), (0, totals.logged_tokens));
        self.stack.shut_down().await
    }
}

#[tokio::test]
async fn the_openai_sdk_for_python_chats_with_any_provider() -> anyhow::Result<()> {
    let world = World::start().await?;
    for (api, model) in [(Api::Chat, "chat"), (Api::Messages, "claude")] {
        let queue = vec![
            says(SAID),
            says(SAID),
            says(SAID),
            api.call(),
            says(AFTER),
            api.streamed_call(),
            says(FORECAST),
            limits(),
        ];
        world.script(api, queue);
        world.embeds(api == Api::Chat);
        let Some(said) = world.run(Program::Sdk("openai_sdk.py"), &[], model).await? else { return Ok(()) };
        assert_eq!(said["whole"], json!({ "text": SAID, "finish": "stop", "model": model, "total": 26 }), "{api:?}");
        let streamed = |total: Value| json!({ "text": SAID, "calls": [], "finish": "stop", "early_finish": [], "role": "assistant", "total": total });
        assert_eq!(said["streamed"], streamed(Value::Null), "{api:?}: usage nobody asked for");
        assert_eq!(said["streamed_with_usage"], streamed(json!(26)), "{api:?}");
        assert_eq!(
            said["tools"],
            json!({ "finish": "tool_calls", "id": api.call_id(), "name": "weather", "city": "Oslo", "text": AFTER })
        );
        let made = json!([{ "id": api.call_id(), "name": "weather", "arguments": "{\"city\": \"Oslo\"}" }]);
        assert_eq!(
            (&said["streamed_tools"]["calls"], &said["streamed_tools"]["finish"]),
            (&made, &json!("tool_calls"))
        );
        assert_eq!(said["structured"], json!({ "city": "Oslo", "degrees": -3 }));
        assert_eq!(numbers(&said["vectors"]), sent(), "{api:?}");
        assert_eq!(said["failing"]["status"], 429);
        assert_eq!(said["failing"]["message"], "slow down please");
    }
    world.finish().await
}

#[tokio::test]
async fn the_anthropic_sdk_talks_to_any_provider() -> anyhow::Result<()> {
    let world = World::start().await?;
    for (api, model) in [(Api::Messages, "claude"), (Api::Chat, "chat")] {
        let queue = vec![
            says(SAID),
            says(SAID),
            api.call(),
            says(AFTER),
            api.streamed_call(),
            api.call(),
            says(AFTER),
            limits(),
        ];
        world.script(api, queue);
        let Some(said) = world.run(Program::Sdk("anthropic_sdk.py"), &[], model).await? else { return Ok(()) };
        assert_eq!(
            said["whole"],
            json!({ "text": SAID, "stop": "end_turn", "model": model, "role": "assistant", "output": 6 }),
            "{api:?}"
        );
        assert_eq!(
            said["streamed"],
            json!({ "first": "message_start", "last": "message_stop", "text": SAID, "stop": "end_turn", "calls": [],
                "output": 6 }),
            "{api:?}"
        );
        assert_eq!(
            said["tools"],
            json!({ "stop": "tool_use", "id": api.call_id(), "name": "weather", "city": "Oslo", "text": AFTER })
        );
        let made = json!([{ "id": api.call_id(), "name": "weather", "input": { "city": "Oslo" } }]);
        assert_eq!((&said["streamed_tools"]["calls"], &said["streamed_tools"]["stop"]), (&made, &json!("tool_use")));
        assert_eq!(said["run_by_itself"], AFTER, "{api:?}");
        let log = world.stack.upstream.log(0);
        let after_the_tool = log.calls.iter().rfind(|call| call.path == api.path() && call.status == Some(200));
        let told = after_the_tool.map(|call| call.body["messages"].to_string()).unwrap_or_default();
        assert!(told.contains("cold in Oslo"), "{api:?}: {told}");
        // Anthropic keeps the conversation if it is asked to, and no other provider.
        assert!(api == Api::Messages || told.contains("weather in Oslo?"), "{told}");
        assert_eq!(
            said["failing"],
            json!({ "status": 429, "type": "rate_limit_error", "message": "slow down please" })
        );
        assert!(said["counted"].as_i64().unwrap() > 4, "{said}");
        assert_eq!(said["wrong_key"], "authentication_error");
    }
    world.finish().await
}

#[tokio::test]
async fn the_openai_sdk_for_node_chats_with_any_provider() -> anyhow::Result<()> {
    let world = World::start().await?;
    for (api, model) in [(Api::Chat, "chat"), (Api::Messages, "claude")] {
        let queue =
            vec![says(SAID), says(SAID), api.call(), says(AFTER), api.streamed_call(), says(FORECAST), limits()];
        world.script(api, queue);
        world.embeds(api == Api::Chat);
        let Some(said) = world.run(Program::Node("openai_sdk.mjs"), &[], model).await? else { return Ok(()) };
        assert_eq!(said["whole"], json!({ "text": SAID, "finish": "stop", "model": model }), "{api:?}");
        assert_eq!((&said["streamed"], &said["total"]), (&json!(SAID), &json!(26)), "{api:?}");
        assert_eq!(said["tools"], json!({ "id": api.call_id(), "name": "weather", "city": "Oslo" }));
        assert_eq!(said["after"], AFTER);
        let made = json!([{ "id": api.call_id(), "name": "weather", "arguments": "{\"city\": \"Oslo\"}" }]);
        assert_eq!(said["streamedTools"], made);
        assert_eq!(said["structured"], json!({ "city": "Oslo", "degrees": -3 }));
        assert_eq!(numbers(&said["vectors"]), sent(), "{api:?}");
        assert_eq!(said["failing"]["name"], "RateLimitError");
    }
    world.finish().await
}

#[tokio::test]
async fn the_openai_sdks_use_the_responses_api_with_any_provider() -> anyhow::Result<()> {
    let world = World::start().await?;
    for (api, model) in [(Api::Chat, "chat"), (Api::Messages, "claude"), (Api::Responses, "native")] {
        let queue = vec![says(SAID), says(SAID), api.call(), says(AFTER), api.streamed_call(), says(FORECAST)];
        world.script(api, queue);
        let Some(said) = world.run(Program::Sdk("openai_responses.py"), &[], model).await? else { return Ok(()) };
        assert_eq!(
            said["whole"],
            json!({ "text": SAID, "status": "completed", "model": model, "total": 26 }),
            "{api:?}"
        );
        assert_eq!(
            said["streamed"],
            json!({ "first": "response.created", "last": "response.completed", "numbered": true, "text": SAID,
                "final": SAID, "total": 26 }),
            "{api:?}"
        );
        assert_eq!(
            said["tools"],
            json!({ "id": api.call_id(), "name": "weather", "city": "Oslo", "text": AFTER }),
            "{api:?}"
        );
        let arguments = r#"{"city": "Oslo"}"#;
        assert_eq!(
            said["streamed_tools"],
            json!({ "pieces": arguments, "done": arguments, "id": api.call_id(), "name": "weather",
                "arguments": arguments }),
            "{api:?}"
        );
        assert_eq!(said["structured"], json!({ "city": "Oslo", "degrees": -3 }), "{api:?}");
        assert_eq!(said["stateful"], "previous_response_id");
    }
    world.script(
        Api::Chat,
        vec![
            says(SAID),
            says(SAID),
            Api::Chat.call(),
            says(AFTER),
            Api::Chat.streamed_call(),
            says(FORECAST),
            limits(),
            says(SAID),
            says(SAID),
        ],
    );
    let said = world.run(Program::Node("openai_sdk.mjs"), &["responses"], "chat").await?.unwrap_or_default();
    assert_eq!(said["responses"], json!({ "text": SAID, "streamed": SAID }));
    world.finish().await
}

#[tokio::test]
async fn the_openai_sdk_has_texts_go_on_where_that_is_known() -> anyhow::Result<()> {
    let world = World::start().await?;
    for model in ["chat", "native"] {
        let breaking = Behaviour { cut_after_events: Some(3), ..says(SAID) };
        let queue = vec![says(SAID), says(SAID), says(SAID), says(SAID), limits(), breaking];
        world.stack.upstream.script(Script { path: "/v1/completions".to_owned(), queue, default: None });
        let program = Program::Sdk("openai_completions.py");
        let Some(said) = world.run(program, &[], model).await? else { return Ok(()) };
        let whole = |texts: Value| json!({ "texts": texts, "finish": "stop", "model": model, "total": 26 });
        assert_eq!((&said["whole"], &said["two"]), (&whole(json!([SAID])), &whole(json!([SAID, SAID]))));
        let streamed = |total: Value| json!({ "text": SAID, "finish": "stop", "total": total });
        assert_eq!(said["streamed"], streamed(Value::Null), "usage nobody asked for");
        assert_eq!(said["streamed_with_usage"], streamed(json!(26)));
        assert_eq!(said["failing"], json!({ "status": 429, "message": "slow down please", "code": "slow" }));
        assert_eq!(said["breaking"], json!({ "text": "It is cold", "code": "upstream_truncated" }));
        assert_eq!(
            (&said["foreign"]["status"], &said["foreign"]["code"]),
            (&json!(400), &json!("unsupported_for_model"))
        );
    }
    world.finish().await
}

#[tokio::test]
async fn langchain_llamaindex_and_litellm_work_as_clients() -> anyhow::Result<()> {
    let world = World::start().await?;
    let program = Program::Framework("frameworks.py");

    world.script(Api::Chat, vec![says(SAID), says(SAID), Api::Chat.call(), says(AFTER)]);
    let Some(said) = world.run(program, &["langchain"], "chat").await? else { return Ok(()) };
    assert_eq!((&said["text"], &said["streamed"], &said["total"]), (&json!(SAID), &json!(SAID), &json!(26)));
    assert_eq!(said["call"], json!({ "name": "weather", "args": { "city": "Oslo" }, "id": "call_7" }));
    assert_eq!((&said["after"], &said["vectors"]), (&json!(AFTER), &json!(2)));

    for model in ["claude", "chat"] {
        world.script(Api::Messages, Vec::new());
        let said = world.run(program, &["langchain_anthropic"], model).await?.unwrap_or_default();
        assert_eq!((&said["text"], &said["streamed"], &said["total"]), (&json!(SAID), &json!(SAID), &json!(26)));
    }

    let said = world.run(program, &["llamaindex"], "chat").await?.unwrap_or_default();
    assert_eq!((&said["text"], &said["streamed"], &said["vectors"]), (&json!(SAID), &json!(SAID), &json!(2)));

    let said = world.run(program, &["litellm"], "chat").await?.unwrap_or_default();
    assert_eq!((&said["text"], &said["streamed"], &said["total"]), (&json!(SAID), &json!(SAID), &json!(26)));
    assert_eq!(said["messages"], SAID);
    world.finish().await
}
