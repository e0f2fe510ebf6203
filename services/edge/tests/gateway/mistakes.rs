//! What a client got wrong, in the words of each API.

use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{CHAT, World, header};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const RESPONSES: &str = "/v1/responses";

/// Each API with something of the wrong type in it, and the path to that.
fn apis() -> [(&'static str, Value, &'static str); 9] {
    let said = json!([{ "role": "user", "content": 7 }]);
    let part = json!([{ "role": "user", "content": [{ "type": "text", "text": 7 }] }]);
    [
        (CHAT, json!({ "messages": said }), "messages[0].content"),
        (MESSAGES, json!({ "max_tokens": 9, "messages": said }), "messages[0].content"),
        (COUNT, json!({ "messages": part }), "messages[0].content[0].text"),
        (RESPONSES, json!({ "input": said }), "input[0].content"),
        ("/v1/embeddings", json!({ "input": {} }), "input"),
        ("/v1/completions", json!({ "prompt": {} }), "prompt"),
        ("/v1/moderations", json!({ "input": [{ "type": "text" }] }), "input[0].text"),
        ("/v1/rerank", json!({ "query": "q", "documents": [7] }), "documents[0]"),
        ("/v1/retrieve", json!({ "query": "q", "top_k": "3" }), "top_k"),
    ]
}

/// Type, code and path of an error, which must have the form of its API.
fn error(path: &str, body: &Value) -> (String, Value, Value) {
    let error = &body["error"];
    assert!(!error["message"].as_str().unwrap().is_empty());
    if path.starts_with(MESSAGES) {
        assert_eq!(body["type"], "error", "{path}: {body}");
        assert!(body["request_id"].is_string(), "{path}: {body}");
    } else {
        assert_eq!(body.as_object().unwrap().len(), 1, "{path}: {body}");
    }
    (error["type"].as_str().unwrap().to_owned(), error["code"].clone(), error["param"].clone())
}

async fn told(path: &str, answer: Response, status: u16) -> (String, Value, Value) {
    assert_eq!(answer.status().as_u16(), status, "{path}");
    assert_eq!(header(&answer, "content-type"), Some("application/json"));
    error(path, &answer.json().await.unwrap())
}

#[tokio::test]
async fn what_is_wrong_with_a_body_is_told_by_every_api_in_its_form() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let invalid = |code: Value, param: Value| ("invalid_request_error".to_owned(), code, param);
    for (path, wrong, param) in apis() {
        for broken in ["", "{", "[]", "{\"model\":}", "nothing"] {
            let answer = edge.post(path, &json!({})).body(broken).send().await?;
            assert_eq!(told(path, answer, 400).await, invalid(Value::Null, Value::Null), "{path}: {broken}");
        }
        let answer = edge.post(path, &wrong).send().await?;
        assert_eq!(told(path, answer, 400).await, invalid(Value::Null, json!(param)), "{path}");
        let packed = edge.post(path, &wrong).header("content-encoding", "gzip").send().await?;
        assert_eq!(told(path, packed, 415).await, invalid(json!("unsupported_encoding"), Value::Null), "{path}");
    }
    for (path, wrong, param) in apis().into_iter().filter(|(path, ..)| *path != "/v1/retrieve") {
        let mut wrong = wrong;
        wrong["model"] = json!(["fast"]);
        let answer = edge.post(path, &wrong).send().await?;
        let (_, _, told) = told(path, answer, 400).await;
        assert!(told == "model" || told == param, "{path}: {told}");
    }
    // What a body is called does not matter: `curl` calls it a form.
    let body = json!({ "model": "fast", "messages": [{ "role": "user", "content": "a" }] });
    let form = edge.post(CHAT, &body).header("content-type", "application/x-www-form-urlencoded").send().await?;
    assert_eq!(form.status(), 200);
    edge.stop().await
}

#[tokio::test]
async fn what_is_not_there_is_told_by_every_api_in_its_form() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.database.change_project(world.project, "strict_models = true").await?;
    let edge = world.edge().await?;
    let said = json!([{ "role": "user", "content": "a" }]);
    for (path, mut body) in [
        (CHAT, json!({ "messages": said })),
        (MESSAGES, json!({ "max_tokens": 9, "messages": said })),
        (COUNT, json!({ "messages": said })),
        (RESPONSES, json!({ "input": "a" })),
        ("/v1/embeddings", json!({ "input": "a" })),
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/v1/moderations", json!({ "input": "a" })),
        ("/v1/rerank", json!({ "query": "q", "documents": ["a"] })),
    ] {
        body["model"] = json!("nowhere");
        let (kind, code, param) = told(path, edge.post(path, &body).send().await?, 404).await;
        let expected = if path.starts_with(MESSAGES) { "not_found_error" } else { "invalid_request_error" };
        assert_eq!((kind.as_str(), code, param), (expected, json!("model_not_found"), json!("model")), "{path}");
    }
    let nowhere = edge.get("/v1/models/nowhere").send().await?;
    assert_eq!(told("/v1/models", nowhere, 404).await.1, "model_not_found");
    for path in ["/v1/nowhere", "/v1/chat/nowhere", "/v1/messages/nowhere", "/v1/embeddings/nowhere"] {
        let (kind, code, _) = told(path, edge.post(path, &json!({})).send().await?, 404).await;
        let expected = if path.starts_with(MESSAGES) { "not_found_error" } else { "invalid_request_error" };
        assert_eq!((kind.as_str(), code), (expected, json!("unknown_url")), "{path}");
    }
    for (path, ..) in apis() {
        let answer = edge.get(path).send().await?;
        assert_eq!(header(&answer, "allow"), Some("POST"), "{path}");
        let (kind, code, _) = told(path, answer, 405).await;
        assert_eq!((kind.as_str(), code), ("invalid_request_error", json!("method_not_allowed")), "{path}");
    }
    let answer = edge.bare(Method::DELETE, "/v1/models").send().await?;
    assert_eq!(told("/v1/models", answer, 405).await.1, "method_not_allowed");
    edge.stop().await
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_by_every_api_before_it_is_sent() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let key = world.key.secret().expose();
    for (path, ..) in apis() {
        let mut client = TcpStream::connect(edge.address).await?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer {key}\r\nconnection: close\r\ncontent-length: 33554433\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        tokio::time::timeout(testkit::DEADLINE, client.read_to_string(&mut answer)).await??;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{path}: {answer}");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1)?;
        let expected = if path.starts_with(MESSAGES) { "request_too_large" } else { "invalid_request_error" };
        assert_eq!(error(path, &body), (expected.to_owned(), json!("request_too_large"), Value::Null), "{path}");
    }
    edge.stop().await
}
