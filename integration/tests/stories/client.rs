//! Calls of a program that uses the edge.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use testkit::{Project, Stack};

/// Longer than any story lets a call stand still.
const PATIENCE: Duration = Duration::from_secs(300);

/// A chat call to an edge.
pub(crate) async fn chat(stack: &Stack, edge: usize, project: &Project, body: Value) -> anyhow::Result<Response> {
    let url = format!("{}/chat/completions", stack.edge_url(edge)?);
    Ok(stack.http.post(url).bearer_auth(&project.key).timeout(PATIENCE).json(&body).send().await?)
}

/// The body of a chat with one user message.
pub(crate) fn ask(question: &str) -> Value {
    json!({ "model": "chat", "messages": [{ "role": "user", "content": question }] })
}

/// The same, streamed.
pub(crate) fn ask_streamed(question: &str) -> Value {
    let mut body = ask(question);
    body["stream"] = json!(true);
    body
}

/// Status, one header and JSON body of an answer.
pub(crate) async fn read(answer: Response, header: &str) -> anyhow::Result<(StatusCode, Option<String>, Value)> {
    let status = answer.status();
    let header = answer.headers().get(header).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let text = answer.text().await?;
    let body = serde_json::from_str(&text).map_err(|error| anyhow::anyhow!("{error}: {text}"))?;
    Ok((status, header, body))
}

/// The text of a chat's server-sent events, and whether the stream ended as it should.
pub(crate) fn stream_text(body: &str) -> (String, bool) {
    let mut text = String::new();
    for line in body.lines() {
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if let Ok(chunk) = serde_json::from_str::<Value>(data) {
            text.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        }
    }
    (text, body.trim_end().ends_with("data: [DONE]"))
}
