//! What a provider says of a call is for its client. It may quote the prompt, so no log has it.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::{Role, Stack, until};
use upstream::{Behaviour, Raw, Script, ScriptedError};

use crate::{client, sample};

const QUOTED: &str = "you wrote that the safe opens with 4711";
const SECRET: &str = "4711";

const CHAT: &str = "/v1/chat/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

fn complains(status: u16) -> Behaviour {
    let quoted = || Some(QUOTED.to_owned());
    // A provider that asks for longer than eight seconds is not waited for.
    let retry_after = Some("60".to_owned());
    let error =
        ScriptedError { message: QUOTED.to_owned(), r#type: quoted(), code: quoted(), ..ScriptedError::status(status) };
    Behaviour { error: Some(ScriptedError { retry_after, ..error }), ..Behaviour::default() }
}

fn every(stack: &Stack, path: &str, behaviour: Behaviour) {
    stack.upstream.script(Script { path: path.to_owned(), default: Some(behaviour), ..Script::default() });
}

/// A stream whose second event is an error.
fn breaks_off() -> Behaviour {
    let chunk = json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "demo-chat",
        "choices": [{ "index": 0, "delta": { "role": "assistant", "content": "It" }, "finish_reason": null }] });
    let error = json!({ "error": { "message": QUOTED, "type": QUOTED, "code": QUOTED } });
    let body = format!("data: {chunk}\n\ndata: {error}\n\n");
    let raw = Raw { status: 200, content_type: "text/event-stream".to_owned(), body };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

#[tokio::test]
async fn what_a_provider_quotes_is_told_to_the_client_and_to_no_log() -> anyhow::Result<()> {
    let stack = Stack::builder().edges(1).workers(1).set("LOG_LEVEL", "debug").start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let document = admin.upload(project.store, sample::MANUAL, sample::read(sample::MANUAL)?).await?;
    admin.ready(document).await?;
    let model = |name: &str, provider: &str, model: &str| {
        json!({ "name": name, "provider_type": provider, "base_url": stack.upstream.base_url(), "model_name": model,
            "api_key": "test" })
    };
    let order =
        admin.send(Method::POST, "/models", Some(model("order", "voyage_rerank", "order"))).await?["id"].clone();
    let vectors =
        admin.send(Method::POST, "/models", Some(model("vectors", "custom_openai", "demo-embed"))).await?["id"].clone();
    let settings = json!({ "retrieval": { "condense": true, "rerank": { "connection_id": order } } });
    admin.send(Method::PATCH, &format!("/projects/{}", project.id), Some(settings)).await?;

    for (path, status) in [(CHAT, 422), (EMBEDDINGS, 400), ("/v1/rerank", 400)] {
        every(&stack, path, complains(status));
    }
    let edge = stack.nth(Role::Edge, 0)?;
    let has_part = |log: &str, part: &str| {
        let left_out = "a part of a search was left out";
        log.lines().any(|line| line.contains(left_out) && line.contains(&format!("\"{part}\"")))
    };
    let mut asked = client::ask(sample::QUESTION);
    let said = asked["messages"][0].clone();
    asked["messages"] = json!([said, { "role": "assistant", "content": "Long." }, said]);
    let refused = async |expected: u16| {
        let answer = client::chat(&stack, 0, &project, asked.clone()).await?;
        let (status, _, body) = client::read(answer, "retry-after").await?;
        assert_eq!(status.as_u16(), expected);
        assert!(body.to_string().contains(QUOTED), "{body}");
        anyhow::Ok(edge.log())
    };
    until("every call beside a chat's own has failed", async || {
        let log = refused(422).await?;
        let condensed = log.contains("a conversation is searched for by its last message alone");
        Ok(condensed && has_part(&log, "vector") && has_part(&log, "rerank"))
    })
    .await?;
    every(&stack, CHAT, complains(429));
    refused(429).await?;
    until("the chat's own is in the log", async || Ok(edge.log().contains("a provider failed a call"))).await?;

    every(&stack, CHAT, breaks_off());
    let streamed = client::chat(&stack, 0, &project, client::ask_streamed(sample::QUESTION)).await?.text().await?;
    assert!(streamed.contains(QUOTED), "{streamed}");
    until("the stream's end is in the log", async || Ok(edge.log().contains("a stream broke off"))).await?;

    let document = admin.upload(project.store, "note.md", b"# A note\n\nIt is short.\n".to_vec()).await?;
    assert_eq!(admin.verdict(document).await?["status"], "failed");
    let worker = stack.nth(Role::Worker, 0)?;
    until("the worker has told of it", async || Ok(worker.log().contains("an embedding call failed"))).await?;

    let store = json!({ "name": "other", "project_id": project.id, "embedding_connection_id": vectors });
    let (status, told): (_, Value) = admin.try_send(Method::POST, "/rag-stores", Some(store)).await?;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(told.to_string().contains(QUOTED), "{told}");
    let server = stack.nth(Role::Admin, 0)?;
    until("the administration has told of it", async || Ok(server.log().contains("could not be served"))).await?;

    for process in [edge, worker, server] {
        let log = process.log();
        let line = log.lines().find(|line| line.contains(SECRET));
        assert_eq!(line, None);
    }
    stack.shut_down().await
}
