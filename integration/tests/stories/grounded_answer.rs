//! The main job: upload a real PDF, ask, get a grounded answer.

use reqwest::Method;
use serde_json::{Value, json};
use testkit::{Project, Stack};

use crate::packages::{Program, run};
use crate::{client, sample};

async fn stack_with_the_manual() -> anyhow::Result<(Stack, Project)> {
    let stack = Stack::builder().edges(1).workers(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let admin = stack.admin().await?;
    let document = admin.upload(project.store, sample::MANUAL, sample::read(sample::MANUAL)?).await?;
    let document = admin.ready(document).await?;
    assert_eq!(document["page_count"], 8, "{document}");
    Ok((stack, project))
}

fn names_the_page(sources: &str) -> bool {
    let sources: Vec<Value> = serde_json::from_str(sources).unwrap();
    sources.iter().any(|source| source["filename"] == sample::MANUAL && source["page"] == sample::PAGE)
}

#[tokio::test]
async fn curl_gets_an_answer_from_the_pdf_streamed_and_not() -> anyhow::Result<()> {
    let (stack, project) = stack_with_the_manual().await?;
    let answer = client::chat(&stack, 0, &project, client::ask(sample::QUESTION)).await?;
    assert_eq!(answer.status(), 200);
    let hits: u32 = answer.headers()["x-ragmux-rag-hits"].to_str()?.parse()?;
    assert!(hits > 0);
    assert!(names_the_page(answer.headers()["x-ragmux-rag-sources"].to_str()?));
    let answer: Value = answer.json().await?;
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains(sample::ANSWER), "{text}");
    assert_eq!(answer["model"], "chat", "the answer echoes the name that was asked for");

    let answer = client::chat(&stack, 0, &project, client::ask_streamed(sample::QUESTION)).await?;
    assert!(names_the_page(answer.headers()["x-ragmux-rag-sources"].to_str()?));
    assert!(answer.headers()["content-type"].to_str()?.starts_with("text/event-stream"));
    let (streamed, complete) = client::stream_text(&answer.text().await?);
    assert!(complete);
    assert_eq!(streamed, text);

    let totals = testkit::eventually("both calls are settled", || async {
        let totals = stack.database.tier_totals(domain_project(&project)).await?;
        Ok((totals.open_rows == 0).then_some(totals))
    })
    .await?;
    assert_eq!((totals.day_requests, totals.day_tokens_held), (2, 0));
    assert_eq!(totals.day_tokens, totals.logged_tokens, "the embeddings of the upload are in both");
    stack.shut_down().await
}

fn domain_project(project: &Project) -> testkit::ProjectId {
    testkit::ProjectId(project.id)
}

#[tokio::test]
async fn the_openai_sdk_gets_the_same() -> anyhow::Result<()> {
    let (stack, project) = stack_with_the_manual().await?;
    let url = stack.edge_url(0)?;
    let environment = [("RAGMUX_BASE_URL", url.as_str()), ("RAGMUX_API_KEY", project.key.as_str())];
    let program = Program::Sdk("openai_grounded.py");
    let Some(said) = run(program, &[sample::QUESTION], &environment).await? else { return Ok(()) };
    assert!(said["whole"].as_str().unwrap().contains(sample::ANSWER), "{said}");
    assert_eq!(said["streamed"], said["whole"]);
    assert!(said["pieces"].as_u64().unwrap() > 3, "{said}");
    assert_eq!((said["finish"].as_str(), said["whole_model"].as_str()), (Some("stop"), Some("chat")));
    assert_eq!(said["streamed_tokens"], said["whole_tokens"]);
    assert!(names_the_page(said["sources"].as_str().unwrap()));
    assert_eq!(said["models"], json!(["chat"]));
    assert_eq!(said["vectors"].as_array().unwrap().len(), 2);
    assert_eq!(said["wrong_key"], "invalid_api_key");
    stack.shut_down().await
}

#[tokio::test]
async fn the_sdks_take_the_sources_that_they_know_nothing_of() -> anyhow::Result<()> {
    let (stack, project) = stack_with_the_manual().await?;
    let admin = stack.admin().await?;
    let claude = json!({ "name": "claude", "provider_type": "anthropic", "base_url": stack.upstream.base_url(),
        "model_name": "demo-chat", "api_key": "sk-ant-test" });
    let claude = admin.send(Method::POST, "/models", Some(claude)).await?["id"].clone();
    let route = json!({ "name": "claude", "groups": [[{ "connection_id": claude }]] });
    admin.send(Method::POST, &format!("/projects/{}/routes", project.id), Some(route)).await?;
    let url = stack.edge_url(0)?;
    for model in ["chat", "claude"] {
        let environment =
            [("RAGMUX_BASE_URL", url.as_str()), ("RAGMUX_API_KEY", project.key.as_str()), ("RAGMUX_MODEL", model)];
        let program = Program::Sdk("sources.py");
        let Some(said) = run(program, &[sample::QUESTION], &environment).await? else { return Ok(()) };
        for way in ["chat", "chat_stream", "chat_helper", "response", "response_stream", "message"] {
            let ours = &said[way]["ragmux"];
            assert!(names_the_page(&ours["sources"].to_string()), "{model}, {way}: {said}");
            assert!(ours["context"].as_str().unwrap().contains("<context>"), "{model}, {way}: {said}");
        }
        for way in said.as_object().unwrap().values() {
            assert!(way["text"].as_str().unwrap().contains(sample::ANSWER), "{model}: {said}");
        }
        assert_eq!(said["response_stream"]["last"], "response.completed");
        assert_eq!(said["message_stream"]["last"], "message_stop");
    }
    stack.shut_down().await
}
