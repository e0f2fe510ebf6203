//! Chats and embeddings before providers that speak Gemini's API and Ollama's.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Response;
use serde_json::{Value, json};
use upstream::{Behaviour, Figures, Raw, ScriptedError, SeenCall};

use crate::script::{next, raw, says_for};
use crate::stream::{content, events};
use crate::world::{World, answer_tokens, body_of, error_of, header, turn};

/// A provider, where its API is on the scripted one, and the media type of its streams.
const GEMINI: (&str, &str, &str) = ("gemini", "/v1beta", "text/event-stream");
const OLLAMA: (&str, &str, &str) = ("ollama", "/api", "application/x-ndjson");

/// What the provider reports, in tokens.
const USED: [u64; 4] = [30, 4, 0, 0];

async fn world((provider, path, _): (&str, &str, &str), model: &str) -> anyhow::Result<World> {
    let world = World::new().await?;
    let change = format!(
        "UPDATE model_connections SET provider_type = '{provider}', model_name = '{model}',
             base_url = replace(base_url, '/v1', '{path}')"
    );
    world.database.execute(&change).await?;
    Ok(world)
}

fn seen(world: &World) -> SeenCall {
    world.upstream.log(0).calls.pop().unwrap()
}

#[tokio::test]
async fn a_chat_is_put_to_gemini_and_answered_as_a_chat() -> anyhow::Result<()> {
    let world = world(GEMINI, "gemini-2.5-flash").await?;
    let edge = world.edge().await?;
    next(&world.upstream, says_for("Full tonight.", USED));
    let answer = edge.chat(json!({ "max_tokens": 50, "logit_bias": { "7": 1 } })).send().await?;
    assert_eq!(header(&answer, "x-ragmux-dropped"), Some("logit_bias"));
    let answer = body_of(answer, 200).await;
    assert_eq!(
        (&answer["model"], &answer["choices"][0]["message"]["content"]),
        (&json!("fast"), &json!("Full tonight."))
    );
    assert_eq!(answer["usage"]["total_tokens"], 34);
    let call = seen(&world);
    assert_eq!((call.path.as_str(), call.query), ("/v1beta/models/gemini-2.5-flash:generateContent", None));
    assert_eq!(call.body["generationConfig"], json!({ "maxOutputTokens": 50 }));
    assert_eq!(world.the_logged_call().await?.charged_tokens, 34);

    next(&world.upstream, says_for("Full tonight.", USED));
    let stream = edge.chat(json!({ "stream": true, "stream_options": { "include_usage": true } })).send().await?;
    let text = stream.text().await?;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(content(&events(&text).0), "Full tonight.");
    let call = seen(&world);
    assert_eq!(call.path, "/v1beta/models/gemini-2.5-flash:streamGenerateContent");
    assert_eq!(call.query.as_deref(), Some("alt=sse"));
    assert_eq!(world.logged(2).await?[1].charged_tokens, 34);
    edge.stop().await
}

#[tokio::test]
async fn a_chat_is_put_to_ollama_and_answered_as_a_chat() -> anyhow::Result<()> {
    let world = world(OLLAMA, "lamp").await?;
    let edge = world.edge().await?;
    next(&world.upstream, says_for("Full tonight.", USED));
    let answer = body_of(edge.chat(json!({ "max_tokens": 50 })).send().await?, 200).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "Full tonight.");
    let call = seen(&world);
    assert_eq!((call.path.as_str(), &call.body["options"]), ("/api/chat", &json!({ "num_predict": 50 })));
    assert_eq!((&call.body["model"], &call.body["stream"]), (&json!("lamp"), &json!(false)));

    // Whatever the network makes of the lines.
    next(&world.upstream, Behaviour { split_bytes: Some(3), ..says_for("Full tonight, à bientôt.", USED) });
    let text = edge.chat(json!({ "stream": true })).send().await?.text().await?;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(content(&events(&text).0), "Full tonight, à bientôt.");
    let logged = world.logged(2).await?;
    assert!(logged.iter().all(|call| call.charged_tokens == 34), "{logged:?}");
    edge.stop().await
}

#[tokio::test]
async fn a_stream_of_another_dialect_that_breaks_off_is_an_error() -> anyhow::Result<()> {
    for (provider, model) in [(GEMINI, "gemini-2.5-flash"), (OLLAMA, "lamp")] {
        let world = world(provider, model).await?;
        let edge = world.edge().await?;
        for behaviour in [
            Behaviour { omit_done: true, ..says_for("Full tonight.", USED) },
            Behaviour { cut_after_events: Some(1), ..says_for("Full tonight.", USED) },
        ] {
            next(&world.upstream, behaviour);
            let text = edge.chat(json!({ "stream": true })).send().await?.text().await?;
            let last = events(&text).0.pop().unwrap();
            assert_eq!(last["error"]["code"], "upstream_truncated", "{text}");
            assert!(!text.contains("[DONE]"));
        }
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_gemini_has_reported_is_paid_however_its_stream_ends() -> anyhow::Result<()> {
    let event = |text: &str, output: i64| {
        let usage = json!({ "promptTokenCount": 1000, "candidatesTokenCount": output, "thoughtsTokenCount": 300 });
        let candidate = json!({ "content": { "role": "model", "parts": [{ "text": text }] }, "index": 0 });
        format!("data: {}\n\n", json!({ "candidates": [candidate], "usageMetadata": usage }))
    };
    let world = world(GEMINI, "gemini-2.5-flash").await?;
    let edge = world.edge().await?;
    let body = format!("{}{}", event("Full ", 2), event("tonight.", 4));
    for (calls, client_leaves, status) in [(1, true, 499), (2, false, 502)] {
        next(&world.upstream, Behaviour { stay_open: client_leaves, ..raw("text/event-stream", body.clone()) });
        let mut answer = edge.chat(json!({ "stream": true })).send().await?;
        let mut got = String::new();
        while let Some(piece) = answer.chunk().await? {
            got.push_str(std::str::from_utf8(&piece)?);
            if client_leaves && got.contains("tonight.") {
                break;
            }
        }
        drop(answer);
        let logged = world.logged(calls).await?.pop().unwrap();
        assert_eq!((logged.status, logged.state.as_str()), (status, "estimated"), "{logged:?}");
        assert_eq!((logged.prompt_tokens, logged.charged_tokens), (Some(1000), 1304), "{logged:?}");
    }

    edge.stop().await?;

    world.database.change_project(world.project, "enforcement = 'hard'").await?;
    let edge = world.edge().await?;
    next(&world.upstream, raw("text/event-stream", event(&"many more words ".repeat(100), 600)));
    let text = edge.chat(json!({ "stream": true, "max_tokens": 70 })).send().await?.text().await?;
    assert!(text.contains("\"length\""), "{text}");
    let logged = world.logged(3).await?.pop().unwrap();
    assert_eq!((logged.status, logged.charged_tokens), (200, 1900), "{logged:?}");
    edge.stop().await
}

#[tokio::test]
async fn errors_of_other_dialects_keep_their_meaning() -> anyhow::Result<()> {
    let world = world(GEMINI, "gemini-2.5-flash").await?;
    let edge = world.edge().await?;
    let scripted = |error: ScriptedError| Behaviour { error: Some(error), ..Behaviour::default() };
    next(&world.upstream, scripted(ScriptedError { message: "too long".to_owned(), ..ScriptedError::status(400) }));
    let told = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!(told, (400, "invalid_request_error".to_owned(), json!("INVALID_ARGUMENT")));
    next(&world.upstream, scripted(ScriptedError::status(403)));
    let (status, _, code) = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!((status, code), (502, json!("upstream_auth")));
    // Nothing but the body says how long to wait, and it is longer than any call would.
    let exhausted = json!({ "error": { "code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": [
        { "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "4000s" }] } });
    let raw = Raw { status: 429, content_type: "application/json".to_owned(), body: exhausted.to_string() };
    next(&world.upstream, Behaviour { raw: Some(raw), ..Behaviour::default() });
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!(header(&answer, "retry-after"), Some("4000"));
    assert_eq!(error_of(answer).await.0, 429);
    edge.stop().await
}

fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": { "harbour": { "type": "string" } } });
    json!([{ "type": "function", "function": { "name": "tide", "parameters": parameters } }])
}

/// Asks for a tool, and goes on with its result as a client of the API does. Returns what the provider was asked last.
async fn round_trip(world: &World, first: Behaviour, is_streamed: bool) -> anyhow::Result<Value> {
    let edge = world.edge().await?;
    next(&world.upstream, first);
    let answer: Response = edge.chat(json!({ "tools": tools(), "stream": is_streamed })).send().await?;
    let call = if is_streamed {
        let text = answer.text().await?;
        let mut call = json!({});
        let mut arguments = String::new();
        for event in events(&text).0 {
            let piece = &event["choices"][0]["delta"]["tool_calls"][0];
            if piece["id"].is_string() {
                call = piece.clone();
            }
            arguments.push_str(piece["function"]["arguments"].as_str().unwrap_or_default());
        }
        assert!(text.contains("\"finish_reason\":\"tool_calls\""), "{text}");
        call["function"]["arguments"] = arguments.into();
        call
    } else {
        let answer = body_of(answer, 200).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        answer["choices"][0]["message"]["tool_calls"][0].clone()
    };
    assert_eq!(call["function"]["name"], "tide");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap())?;
    assert_eq!(arguments, json!({ "harbour": "Saint-Malo" }));
    next(&world.upstream, says_for("At nine.", USED));
    let id = call["id"].clone();
    assert!(!id.as_str().unwrap().is_empty());
    let messages = json!([
        { "role": "user", "content": "When is high tide?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": id, "content": "{\"high\":\"nine\"}" },
    ]);
    let mut body = turn(json!({ "tools": tools() }));
    body["messages"] = messages;
    body_of(edge.post(crate::world::CHAT, &body).send().await?, 200).await;
    edge.stop().await?;
    Ok(seen(world).body)
}

#[tokio::test]
async fn a_tool_of_the_client_is_called_by_gemini() -> anyhow::Result<()> {
    let world = world(GEMINI, "gemini-3-pro-preview").await?;
    for is_streamed in [false, true] {
        let answer = json!({ "candidates": [{ "finishReason": "STOP", "content": { "role": "model", "parts": [{
            "functionCall": { "name": "tide", "args": { "harbour": "Saint-Malo" } }, "thoughtSignature": "c2lnbmVk" }] } }] });
        let behaviour = match is_streamed {
            true => raw(GEMINI.2, format!("data: {answer}\n\n")),
            false => raw("application/json", answer.to_string()),
        };
        let asked = round_trip(&world, behaviour, is_streamed).await?;
        let parts = |turn: usize| asked["contents"][turn]["parts"][0].clone();
        assert_eq!(parts(1)["functionCall"]["args"], json!({ "harbour": "Saint-Malo" }));
        assert_eq!(parts(1)["thoughtSignature"], "c2lnbmVk");
        assert_eq!(parts(2)["functionResponse"]["name"], "tide");
        assert_eq!(parts(2)["functionResponse"]["response"], json!({ "high": "nine" }));
        assert_eq!(parts(2)["functionResponse"]["id"], parts(1)["functionCall"]["id"]);
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_of_the_client_is_called_by_ollama() -> anyhow::Result<()> {
    let world = world(OLLAMA, "lamp").await?;
    for is_streamed in [false, true] {
        let call = json!({ "function": { "name": "tide", "arguments": { "harbour": "Saint-Malo" } } });
        let line = |done: bool| {
            json!({ "model": "lamp", "done": done, "message": { "role": "assistant", "content": "",
            "tool_calls": if done && is_streamed { json!([]) } else { json!([call]) } } })
        };
        let behaviour = match is_streamed {
            true => raw(OLLAMA.2, format!("{}\n{}\n", line(false), line(true))),
            false => raw("application/json", line(true).to_string()),
        };
        let asked = round_trip(&world, behaviour, is_streamed).await?;
        assert_eq!(asked["messages"][1]["tool_calls"][0], call);
        assert_eq!(
            asked["messages"][2],
            json!({ "role": "tool", "content": "{\"high\":\"nine\"}", "tool_name": "tide" })
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_image_by_url_is_fetched_but_never_from_a_private_address() -> anyhow::Result<()> {
    for (provider, model) in [(GEMINI, "gemini-2.5-flash"), (OLLAMA, "lamp")] {
        let world = world(provider, model).await?;
        let edge = world.edge().await?;
        let ask = |url: &str| {
            let image = json!({ "type": "image_url", "image_url": { "url": url } });
            let mut body = turn(json!({}));
            body["messages"][0]["content"] = json!([{ "type": "text", "text": "What is it?" }, image]);
            edge.post(crate::world::CHAT, &body)
        };
        let loopback = format!("{}/secret/picture.png?signature=abc", world.upstream.base_url());
        let answer = ask(&loopback).send().await?;
        let told = body_of(answer, 400).await;
        assert_eq!(told["error"]["code"], "invalid_image_url");
        let message = told["error"]["message"].as_str().unwrap();
        assert!(message.contains("127.0.0.1") && !message.contains("secret"), "{message}");
        assert_eq!(world.upstream.log(0).calls.len(), 0);
        let logged = world.the_logged_call().await?;
        assert_eq!((logged.status, logged.charged_tokens), (400, 0));

        next(&world.upstream, says_for("A lamp.", USED));
        let data = STANDARD.encode(b"not looked at");
        body_of(ask(&format!("data:image/png;base64,{data}")).send().await?, 200).await;
        let sent = seen(&world).body.to_string();
        assert!(sent.contains(&data), "{sent}");
        let answer = body_of(ask("data:image/svg+xml;base64,AAAA").send().await?, 400).await;
        assert_eq!(answer["error"]["param"], "messages");
        edge.stop().await?;
        let edge = world.edge_with(&[("IMAGE_FETCH", "false")]).await?;
        let image = json!([{ "type": "image_url", "image_url": { "url": "https://pictures.example/a.png" } }]);
        let mut body = turn(json!({}));
        body["messages"][0]["content"] = image;
        let told = error_of(edge.post(crate::world::CHAT, &body).send().await?).await;
        assert_eq!((told.0, told.2), (400, json!("image_fetch_disabled")));
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn embeddings_of_other_dialects_have_the_clients_form() -> anyhow::Result<()> {
    // Gemini tells no usage, which clients expect all the same.
    let counted = answer_tokens("red door") + answer_tokens("blue");
    for (provider, path, tokens, state) in [
        (GEMINI, "/v1beta/models/demo-embed:batchEmbedContents", counted, "estimated"),
        (OLLAMA, "/api/embed", 4, "final"),
    ] {
        let world = world(provider, "demo-embed").await?;
        let edge = world.edge().await?;
        let mut vectors = Vec::new();
        for encoding in ["float", "base64"] {
            let figures = Figures { prompt_tokens: 4, ..Figures::default() };
            next(&world.upstream, Behaviour { figures: Some(figures), ..Behaviour::default() });
            let body =
                json!({ "model": "fast", "input": ["red door", "blue"], "dimensions": 8, "encoding_format": encoding });
            let answer = body_of(edge.post("/v1/embeddings", &body).send().await?, 200).await;
            assert_eq!(answer["model"], "fast");
            assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
            assert_eq!(answer["data"][1]["index"], 1);
            vectors.push(answer["data"][1]["embedding"].clone());
        }
        assert_eq!(seen(&world).path, path);
        for logged in world.logged(2).await? {
            assert_eq!((logged.charged_tokens, logged.state.as_str()), (tokens, state));
        }
        let bytes = STANDARD.decode(vectors[1].as_str().unwrap())?;
        let floats: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(serde_json::from_value::<Vec<f32>>(vectors[0].clone())?, floats);
        assert_eq!(floats.len(), 8);
        let many: Vec<String> = (0..120).map(|at| format!("text {at}")).collect();
        let before = world.upstream.log(0).calls.len();
        let answer =
            body_of(edge.post("/v1/embeddings", &json!({ "model": "fast", "input": many })).send().await?, 200).await;
        assert_eq!((answer["data"].as_array().unwrap().len(), &answer["data"][119]["index"]), (120, &json!(119)));
        assert_eq!(world.upstream.log(0).calls.len() - before, if provider == GEMINI { 2 } else { 1 });
        if provider == GEMINI {
            let tokens: i64 = many.iter().map(|text| answer_tokens(text)).sum();
            assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
        }
        edge.stop().await?;
    }
    Ok(())
}
