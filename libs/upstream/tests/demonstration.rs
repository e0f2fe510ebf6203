//! The demonstration models over HTTP.
#![allow(clippy::unwrap_used, reason = "part of tests")]

mod client;

use base64::{Engine, prelude::BASE64_STANDARD};
use client::{Client, events, question};
use domain::Secret;
use ragmux_upstream::Options;
use serde_json::{Value, json};

const CONTEXT: &str = "Answer from the passages and cite them.\n\n<context>\n[1] (almanac.pdf · Tides · p.3)\nHigh water \
                       at the old harbour comes fifty minutes later each day. The tide gauge was read by hand until \
                       1974.\n\n[2] (almanac.pdf · Lamps · p.9)\nThe harbour lamp burns colza oil and is trimmed every \
                       four hours.\n</context>";

fn with_context(text: &str) -> Value {
    json!({
        "model": "demo-chat",
        "messages": [{ "role": "system", "content": CONTEXT }, { "role": "user", "content": text }],
    })
}

async fn json(response: reqwest::Response) -> Value {
    response.json().await.unwrap()
}

#[tokio::test]
async fn the_models_are_listed() {
    let client = Client::of(Options::default()).await;
    let models = json(client.get("/v1/models").await).await;
    assert_eq!(models["object"], "list");
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["demo-chat", "demo-embed"]);
    assert_eq!(json(client.get("/v1/models/demo-chat").await).await["object"], "model");
    assert_eq!(client.get("/v1/models/gpt-4o").await.status(), 404);
    assert_eq!(client.get("/healthz").await.status(), 200);
}

#[tokio::test]
async fn a_question_is_answered_with_a_cited_sentence() {
    let client = Client::of(Options::default()).await;
    let answer = json(client.chat(&with_context("How often is the lamp in the harbour trimmed?")).await).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "demo-chat");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.starts_with("The harbour lamp burns colza oil and is trimmed every four hours. [2]"), "{content}");
    let usage = &answer["usage"];
    assert!(usage["prompt_tokens"].as_u64().unwrap() > 50);
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
}

#[tokio::test]
async fn without_passages_it_says_what_it_is() {
    let client = Client::of(Options::default()).await;
    for body in [question("How deep is the harbour?"), with_context("Which composer wrote nine symphonies?")] {
        let answer = json(client.chat(&body).await).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(content.contains("demonstration model") && !content.contains('['), "{content}");
    }
}

#[tokio::test]
async fn a_stream_says_the_same_word_by_word() {
    let client = Client::of(Options::default()).await;
    let mut body = with_context("When was the tide gauge read by hand?");
    let whole = json(client.chat(&body).await).await;
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let response = client.chat(&body).await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let events = events(&response.text().await.unwrap());
    let (done, events) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"]));
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "", "refusal": null }));

    let (usage, events) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], whole["usage"]);
    assert!(events.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));

    let (reason, words) = events[1..].split_last().unwrap();
    assert_eq!(reason["choices"][0]["delta"], json!({}));
    assert_eq!(reason["choices"][0]["finish_reason"], "stop");
    let words: Vec<&str> = words.iter().map(|word| word["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert!(words.iter().all(|word| word.split_whitespace().count() == 1));
    assert_eq!(words.concat(), whole["choices"][0]["message"]["content"]);
}

#[tokio::test]
async fn a_stream_has_no_usage_unless_asked() {
    let client = Client::of(Options::default()).await;
    let stream = client.chat(&client::streamed("hello there")).await.text().await.unwrap();
    assert!(stream.ends_with("data: [DONE]\n\n"));
    assert!(!stream.contains("usage"));
}

#[tokio::test]
async fn limits_stop_strings_and_choices_are_honoured() {
    let client = Client::of(Options::default()).await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let mut body = with_context("How often is the lamp in the harbour trimmed?");
        body[field] = json!(5);
        let answer = json(client.chat(&body).await).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert!((1..=5).contains(&answer["usage"]["completion_tokens"].as_u64().unwrap()));
        assert!(
            "The harbour lamp burns colza oil"
                .starts_with(answer["choices"][0]["message"]["content"].as_str().unwrap())
        );
    }
    let mut body = with_context("How often is the lamp in the harbour trimmed?");
    body["stop"] = json!(["four", " colza"]);
    body["n"] = json!(3);
    let answer = json(client.chat(&body).await).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], "The harbour lamp burns");
        assert_eq!(choice["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn embeddings_come_in_every_form() {
    let client = Client::of(Options::default()).await;
    let embed = |body: Value| {
        let client = &client;
        async move { json(client.post("/v1/embeddings", &body).await.unwrap()).await }
    };
    let one = embed(json!({ "model": "demo-embed", "input": "hello world" })).await;
    assert_eq!(one["object"], "list");
    assert_eq!(one["model"], "demo-embed");
    assert_eq!(one["data"][0]["embedding"].as_array().unwrap().len(), 384);
    assert!(one["usage"]["prompt_tokens"].as_u64().unwrap() >= 2);
    assert_eq!(one["usage"]["prompt_tokens"], one["usage"]["total_tokens"]);

    let several = embed(json!({ "model": "demo-embed", "input": ["first", "hello world", "first"] })).await;
    assert_eq!(several["data"][1]["index"], 1);
    assert_eq!(several["data"][1]["embedding"], one["data"][0]["embedding"]);
    assert_eq!(several["data"][0]["embedding"], several["data"][2]["embedding"]);

    // "hello world" in the vocabulary that clients use for embeddings.
    let tokens = embed(json!({ "model": "demo-embed", "input": [15339, 1917] })).await;
    assert_eq!(tokens["data"][0]["embedding"], one["data"][0]["embedding"]);
    assert_eq!(tokens["usage"]["prompt_tokens"], 2);
    let nested = embed(json!({ "model": "demo-embed", "input": [[15339, 1917], [1917]] })).await;
    assert_eq!(nested["data"].as_array().unwrap().len(), 2);
    assert_eq!(nested["data"][0]["embedding"], one["data"][0]["embedding"]);

    let small = embed(json!({ "model": "demo-embed", "input": "hello world", "dimensions": 32 })).await;
    let floats: Vec<f32> = serde_json::from_value(small["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(floats.len(), 32);
    let encoded =
        embed(json!({ "model": "demo-embed", "input": "hello world", "dimensions": 32, "encoding_format": "base64" }))
            .await;
    let bytes = BASE64_STANDARD.decode(encoded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let decoded: Vec<f32> = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(decoded, floats);
}

#[tokio::test]
async fn bad_requests_are_refused_in_the_dialect() {
    let client = Client::of(Options::default()).await;
    let many: Vec<&str> = vec!["x"; 2049];
    for (path, body, status, param) in [
        ("/v1/embeddings", json!({ "input": "x" }), 400, "model"),
        ("/v1/embeddings", json!({ "model": "demo-embed" }), 400, "input"),
        ("/v1/embeddings", json!({ "model": "demo-embed", "input": "" }), 400, "input"),
        ("/v1/embeddings", json!({ "model": "demo-embed", "input": [] }), 400, "input"),
        ("/v1/embeddings", json!({ "model": "demo-embed", "input": many }), 400, "input"),
        ("/v1/embeddings", json!({ "model": "demo-embed", "input": [[]] }), 400, "input"),
        ("/v1/embeddings", json!({ "model": "demo-embed", "input": [4_000_000] }), 400, "input"),
        ("/v1/embeddings", json!({ "model": "demo-embed", "input": ["x", null] }), 400, "input"),
        ("/v1/embeddings", json!({ "model": "demo-embed", "input": "x", "dimensions": 0 }), 400, "dimensions"),
        (
            "/v1/embeddings",
            json!({ "model": "demo-embed", "input": "x", "encoding_format": "hex" }),
            400,
            "encoding_format",
        ),
        ("/v1/embeddings", json!({ "model": "demo-chat", "input": "x" }), 400, "model"),
        ("/v1/embeddings", json!({ "model": "text-embedding-3-small", "input": "x" }), 404, "model"),
        ("/v1/chat/completions", json!({ "model": "gpt-4o", "messages": [{ "role": "user" }] }), 404, "model"),
        ("/v1/chat/completions", json!({ "model": "demo-chat" }), 400, "messages"),
    ] {
        let response = client.post(path, &body).await.unwrap();
        assert_eq!(response.status(), status, "{path} {body}");
        let error = json(response).await["error"].clone();
        assert_eq!(error["type"], "invalid_request_error", "{error}");
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    }
    let malformed = client.http.post(client.url("/v1/chat/completions")).body("{\"model\":").send().await.unwrap();
    assert_eq!(malformed.status(), 400);
    assert_eq!(json(malformed).await["error"]["type"], "invalid_request_error");
    assert_eq!(client.get("/v1/chat/completions").await.status(), 405);
    assert_eq!(client.get("/v2/models").await.status(), 404);
    let huge = client.http.post(client.url("/v1/chat/completions")).body(vec![b' '; 33 << 20]).send().await;
    // The answer may arrive or the connection may break first: the body is not read to its end.
    assert!(huge.map_or(true, |response| response.status() == 413));
}

#[tokio::test]
async fn a_key_is_asked_for_where_one_is_set() {
    let options =
        Options { api_keys: vec![Secret::new("sk-demo-one"), Secret::new("sk-demo-two")], ..Options::default() };
    let client = Client::of(options).await;
    assert_eq!(client.get("/healthz").await.status(), 200);
    let missing = client.get("/v1/models").await;
    assert_eq!(missing.status(), 401);
    assert_eq!(json(missing).await["error"]["code"], Value::Null);
    let wrong = client.http.get(client.url("/v1/models")).bearer_auth("sk-demo-three").send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    assert_eq!(json(wrong).await["error"]["code"], "invalid_api_key");
    let right = client.http.get(client.url("/v1/models")).bearer_auth("sk-demo-two").send().await.unwrap();
    assert_eq!(right.status(), 200);
    let header = client.http.get(client.url("/v1/models")).header("x-api-key", "sk-demo-one").send().await.unwrap();
    assert_eq!(header.status(), 200);
}

#[tokio::test]
async fn nothing_can_be_scripted_unless_allowed() {
    let client = Client::of(Options::default()).await;
    let response = client.post("/script", &json!({ "path": "*", "default": { "close": true } })).await.unwrap();
    assert_eq!(response.status(), 404);
    assert_eq!(client.get("/script/log").await.status(), 404);
    assert_eq!(client.chat(&question("hello")).await.status(), 200);
}
