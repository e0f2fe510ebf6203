//! The Messages API of the upstream.
#![allow(clippy::unwrap_used, reason = "part of tests")]

mod client;

use client::Client;
use ragmux_upstream::{Behaviour, Figures, ScriptedError};
use serde_json::{Value, json};

fn question(stream: bool) -> Value {
    json!({ "model": "demo-chat", "max_tokens": 100, "stream": stream, "system": "Be brief.",
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Light?" }] }] })
}

fn says(content: &str) -> Behaviour {
    let figures = Figures { prompt_tokens: 30, completion_tokens: 4, cached_tokens: 10, reasoning_tokens: 0 };
    Behaviour { content: Some(content.to_owned()), figures: Some(figures), ..Behaviour::default() }
}

async fn post(client: &Client, path: &str, body: &Value) -> (u16, Value) {
    let response = client.post(path, body).await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn an_answer_is_a_message() {
    let client = Client::scripted().await;
    client.next([says("Lit at nine.")]);
    let (status, message) = post(&client, "/v1/messages", &question(false)).await;
    assert_eq!((status, &message["type"], &message["stop_reason"]), (200, &json!("message"), &json!("end_turn")));
    assert_eq!(message["content"], json!([{ "type": "text", "text": "Lit at nine." }]));
    assert_eq!(
        message["usage"],
        json!({ "input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 10, "output_tokens": 4 })
    );
    let (status, count) = post(&client, "/v1/messages/count_tokens", &question(false)).await;
    assert_eq!(status, 200);
    assert!(count["input_tokens"].as_u64().unwrap() > 3);
}

#[tokio::test]
async fn a_stream_is_the_same_message_in_events() {
    let client = Client::scripted().await;
    client.next([says("Lit at nine.")]);
    let text = client.post("/v1/messages", &question(true)).await.unwrap().text().await.unwrap();
    let mut said = String::new();
    let mut kinds = Vec::new();
    for event in text.split_terminator("\n\n") {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        said.push_str(data["delta"]["text"].as_str().unwrap_or_default());
        if kinds.last() != Some(&name) {
            kinds.push(name);
        }
    }
    assert_eq!(said, "Lit at nine.");
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "ping",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
}

#[tokio::test]
async fn errors_have_the_shape_of_the_api() {
    let client = Client::scripted().await;
    let scripted = |error| Behaviour { error: Some(error), ..Behaviour::default() };
    let own = ScriptedError { r#type: Some("own_type".to_owned()), ..ScriptedError::status(400) };
    client.next([scripted(ScriptedError::status(529)), scripted(own)]);
    for (status, kind) in [(529, "overloaded_error"), (400, "own_type")] {
        let (told, error) = post(&client, "/v1/messages", &question(false)).await;
        assert_eq!((told, &error["type"], &error["error"]["type"]), (status, &json!("error"), &json!(kind)));
    }
    let (status, error) = post(&client, "/v1/messages", &json!({ "model": "demo-chat", "messages": [] })).await;
    assert_eq!((status, &error["error"]["type"]), (400, &json!("invalid_request_error")));
    let unbounded = json!({ "model": "demo-chat", "messages": [{ "role": "user", "content": "a" }] });
    let (status, error) = post(&client, "/v1/messages", &unbounded).await;
    assert_eq!((status, &error["error"]["message"]), (400, &json!("max_tokens: Field required")));
}
