//! The Responses API of the upstream.
#![allow(clippy::unwrap_used, reason = "part of tests")]

mod client;

use client::Client;
use ragmux_upstream::{Behaviour, Figures};
use serde_json::{Value, json};

fn question(stream: bool) -> Value {
    json!({ "model": "demo-chat", "stream": stream, "instructions": "Be brief.", "max_output_tokens": 100,
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "Light?" }] },
            { "type": "function_call_output", "call_id": "c", "output": "x" }] })
}

fn says(content: &str) -> Behaviour {
    let figures = Figures { prompt_tokens: 30, completion_tokens: 4, cached_tokens: 10, reasoning_tokens: 2 };
    Behaviour { content: Some(content.to_owned()), figures: Some(figures), ..Behaviour::default() }
}

#[tokio::test]
async fn an_answer_is_a_response() {
    let client = Client::scripted().await;
    client.next([says("Lit at nine.")]);
    let answer = client.post("/v1/responses", &question(false)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let response: Value = answer.json().await.unwrap();
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(response["output"][0]["content"][0]["text"], "Lit at nine.");
    assert_eq!((&response["instructions"], &response["max_output_tokens"]), (&json!("Be brief."), &json!(100)));
    assert_eq!(
        response["usage"],
        json!({ "input_tokens": 30, "input_tokens_details": { "cached_tokens": 10, "cache_write_tokens": 0 }, "output_tokens": 4,
            "output_tokens_details": { "reasoning_tokens": 2 }, "total_tokens": 34 })
    );
    let nothing = client.post("/v1/responses", &json!({ "model": "demo-chat" })).await.unwrap();
    assert_eq!(nothing.status(), 400);
}

#[tokio::test]
async fn a_stream_counts_its_events_and_ends_with_the_response() {
    let client = Client::scripted().await;
    client.next([says("Lit at nine.")]);
    let text = client.post("/v1/responses", &question(true)).await.unwrap().text().await.unwrap();
    let mut events = Vec::new();
    for (number, event) in text.split_terminator("\n\n").enumerate() {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        events.push(data);
    }
    let said: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(said, "Lit at nine.");
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["output"][0]["content"][0]["text"]),
        (&json!("response.completed"), &json!(said))
    );
}

#[tokio::test]
async fn a_limit_makes_an_answer_incomplete() {
    let client = Client::scripted().await;
    let mut body = question(false);
    body["max_output_tokens"] = json!(2);
    let response: Value = client.post("/v1/responses", &body).await.unwrap().json().await.unwrap();
    assert_eq!(
        (&response["status"], &response["incomplete_details"]),
        (&json!("incomplete"), &json!({ "reason": "max_output_tokens" }))
    );
}
