//! Gemini's and Ollama's APIs of the upstream, and OpenAI's from before chats.
#![allow(clippy::unwrap_used, reason = "part of tests")]

mod client;

use client::Client;
use ragmux_upstream::{Behaviour, Figures, ScriptedError};
use serde_json::{Value, json};

const GENERATE: &str = "/v1beta/models/demo-chat:generateContent";
const STREAM: &str = "/v1beta/models/demo-chat:streamGenerateContent?alt=sse";

fn says(content: &str) -> Behaviour {
    let figures = Figures { prompt_tokens: 30, completion_tokens: 9, cached_tokens: 10, reasoning_tokens: 5 };
    Behaviour { content: Some(content.to_owned()), figures: Some(figures), ..Behaviour::default() }
}

async fn post(client: &Client, path: &str, body: &Value) -> (u16, Value) {
    let response = client.post(path, body).await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn gemini_answers_whole_and_streamed() {
    let client = Client::scripted().await;
    let question = json!({ "contents": [{ "role": "user", "parts": [{ "text": "Light?" }] }] });
    client.next([says("Lit at nine."), says("Lit at nine.")]);
    let (status, answer) = post(&client, GENERATE, &question).await;
    assert_eq!((status, &answer["candidates"][0]["content"]["parts"][0]["text"]), (200, &json!("Lit at nine.")));
    let usage = |answer: &Value| {
        ["promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount"]
            .map(|name| answer["usageMetadata"][name].as_u64())
    };
    assert_eq!(usage(&answer), [Some(30), Some(4), Some(5)]);
    let text = client.post(STREAM, &question).await.unwrap().text().await.unwrap();
    let chunks: Vec<Value> = text
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let said: String =
        chunks.iter().filter_map(|chunk| chunk["candidates"][0]["content"]["parts"][0]["text"].as_str()).collect();
    assert_eq!(said, "Lit at nine.");
    let last = chunks.last().unwrap();
    assert_eq!((&last["candidates"][0]["finishReason"], usage(last)[0]), (&json!("STOP"), Some(30)));

    let error = ScriptedError { retry_after: Some("7".to_owned()), ..ScriptedError::status(429) };
    client.next([Behaviour { error: Some(error), ..Behaviour::default() }]);
    let (status, error) = post(&client, GENERATE, &question).await;
    assert_eq!((status, &error["error"]["status"]), (429, &json!("RESOURCE_EXHAUSTED")));
    assert_eq!(error["error"]["details"][0]["retryDelay"], "7s");
    assert_eq!(post(&client, "/v1beta/models/demo-chat:sing", &question).await.0, 404);
}

#[tokio::test]
async fn ollama_answers_whole_and_in_lines() {
    let client = Client::scripted().await;
    let mut question =
        json!({ "model": "demo-chat", "stream": false, "messages": [{ "role": "user", "content": "Light?" }] });
    client.next([says("Lit at nine."), says("Lit at nine.")]);
    let (status, answer) = post(&client, "/api/chat", &question).await;
    assert_eq!((status, &answer["message"]["content"], &answer["done"]), (200, &json!("Lit at nine."), &json!(true)));
    assert_eq!((answer["prompt_eval_count"].as_u64(), answer["eval_count"].as_u64()), (Some(30), Some(9)));
    question["stream"] = Value::Null;
    let response = client.post("/api/chat", &question).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await.unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!((said.as_str(), &lines.last().unwrap()["done_reason"]), ("Lit at nine.", &json!("stop")));
    client.next([Behaviour { error: Some(ScriptedError::status(404)), ..Behaviour::default() }]);
    let (status, error) = post(&client, "/api/chat", &question).await;
    assert!(status == 404 && error["error"].is_string());
}

#[tokio::test]
async fn vectors_are_the_same_in_every_api() {
    let client = Client::scripted().await;
    let texts = json!(["red door", "blue"]);
    let body = json!({ "model": "demo-embed", "input": texts, "dimensions": 8 });
    let (_, openai) = post(&client, "/v1/embeddings", &body).await;
    let (_, ollama) = post(&client, "/api/embed", &body).await;
    assert_eq!(ollama["embeddings"][1], openai["data"][1]["embedding"]);
    assert_eq!(ollama["prompt_eval_count"], openai["usage"]["prompt_tokens"]);
    let request = |text: &str| json!({ "model": "models/demo-embed", "content": { "parts": [{ "text": text }] }, "outputDimensionality": 8 });
    let batch = json!({ "requests": [request("red door"), request("blue")] });
    let (status, gemini) = post(&client, "/v1beta/models/demo-embed:batchEmbedContents", &batch).await;
    assert_eq!((status, &gemini["embeddings"][1]["values"]), (200, &openai["data"][1]["embedding"]));
    let many = json!({ "requests": vec![request("a"); 101] });
    assert_eq!(post(&client, "/v1beta/models/demo-embed:batchEmbedContents", &many).await.0, 400);
}

#[tokio::test]
async fn texts_go_on_whole_and_streamed() {
    let client = Client::scripted().await;
    let mut body = json!({ "model": "demo-chat", "prompt": ["Light?", [1, 2]], "n": 2, "echo": true });
    client.next([says("Lit at nine."), says("Lit at nine."), says("Lit at nine.")]);
    let (status, answer) = post(&client, "/v1/completions", &body).await;
    let texts = |answer: &Value| {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((status, &answer["usage"]["total_tokens"]), (200, &json!(39)));
    let (first, second) = ("Light?Lit at nine.", "2 tokensLit at nine.");
    assert_eq!(texts(&answer), [first, first, second, second]);
    body["max_tokens"] = json!(0);
    assert_eq!(texts(&post(&client, "/v1/completions", &body).await.1), ["Light?", "Light?", "2 tokens", "2 tokens"]);
    let body = json!({ "model": "demo-chat", "prompt": "Light?", "stream": true });
    let text = client.post("/v1/completions", &body).await.unwrap().text().await.unwrap();
    let events: Vec<&str> = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
    let (done, chunks) = events.split_last().unwrap();
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let said: String = chunks.iter().flat_map(texts).collect();
    assert_eq!((said.as_str(), *done), ("Lit at nine.", "[DONE]"));
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!((&last["finish_reason"], &last["text"]), (&json!("stop"), &json!("")));
    assert_eq!(post(&client, "/v1/completions", &json!({ "model": "demo-chat", "prompt": 7 })).await.0, 400);
}
