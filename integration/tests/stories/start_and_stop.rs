//! Starting in any order and ending in order.

use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use testkit::{Process, Role, Stack};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use upstream::{Behaviour, Script, Wait};

use crate::client;

async fn grpc_status(process: &Process, service: &str) -> anyhow::Result<ServingStatus> {
    let channel = tonic::transport::Channel::from_shared(process.grpc_url())?.connect().await?;
    let mut health = HealthClient::new(channel);
    let request = HealthCheckRequest { service: service.to_owned() };
    Ok(health.check(request).await?.into_inner().status())
}

#[tokio::test]
async fn edge_and_worker_wait_for_the_schema_whoever_starts_first() -> anyhow::Result<()> {
    let mut stack = Stack::builder().admins(0).edges(1).workers(1).unmigrated().start().await?;
    for (role, name) in [(Role::Edge, "edge"), (Role::Worker, "ingestion-worker")] {
        let process = stack.nth(role, 0)?;
        let (status, body) = testkit::eventually("the service answers", || process.readiness(&stack.http)).await?;
        assert_eq!(status, 503, "{body}");
        assert_ne!(body["status"], "ready", "{body}");
        let alive = stack.http.get(format!("{}/healthz", process.url())).send().await?;
        assert_eq!(alive.status(), 200, "waiting is not being broken");
        assert_eq!(grpc_status(process, "").await?, ServingStatus::Serving);
        assert_eq!(grpc_status(process, name).await?, ServingStatus::NotServing);
    }
    stack.spawn(Role::Admin).await?;
    for (role, name) in [(Role::Admin, "admin"), (Role::Edge, "edge"), (Role::Worker, "ingestion-worker")] {
        let http = stack.http.clone();
        stack.nth_mut(role, 0)?.ready(&http).await?;
        let process = stack.nth(role, 0)?;
        testkit::until("gRPC health follows", || async {
            Ok(grpc_status(process, name).await? == ServingStatus::Serving)
        })
        .await?;
    }
    stack.shut_down().await
}

#[tokio::test]
async fn a_service_with_another_key_refuses_to_start_and_says_why() -> anyhow::Result<()> {
    let mut stack = Stack::builder().start().await?;
    let other = "00".repeat(32);
    for role in [Role::Edge, Role::Worker, Role::Admin] {
        let number = stack.spawn_with(role, &[("SECRET_KEY", other.as_str())]).await?;
        let process = stack.process(number)?;
        let status = process.ended(testkit::DEADLINE).await?;
        let log = process.log();
        assert_eq!(status.code(), Some(1), "{log}");
        for part in ["SECRET_KEY does not match", "env", "instance_settings", "rotate-key"] {
            assert!(log.contains(part), "{role:?} does not say {part:?}:\n{log}");
        }
        assert!(!log.contains(&other), "{log}");
    }
    stack.shut_down().await
}

#[tokio::test]
async fn an_edge_told_to_stop_finishes_its_stream() -> anyhow::Result<()> {
    let mut stack = Stack::builder().edges(1).start().await?;
    let project = stack.project("p", json!({})).await?;
    let held = Behaviour {
        content: Some("word ".to_owned()),
        chunks: Some(6),
        hold_after_events: Some(3),
        ..Behaviour::default()
    };
    stack.upstream.script(Script { path: "/v1/chat/completions".to_owned(), queue: vec![held], ..Script::default() });
    let answer = client::chat(&stack, 0, &project, client::ask_streamed("count")).await?;
    assert_eq!(answer.status(), 200);
    let mut bytes = answer.bytes_stream();
    let mut body = bytes.next().await.unwrap()?.to_vec();
    let wait = Wait { held: Some(1), timeout_ms: Some(30_000), ..Wait::default() };
    assert_eq!(stack.upstream.wait(wait).await.held, 1);
    let edge = stack.nth_mut(Role::Edge, 0)?;
    edge.signal(rustix::process::Signal::TERM)?;
    testkit::until("the edge has begun to stop", || {
        let log = edge.log();
        async move { Ok(log.contains("stage")) }
    })
    .await?;
    stack.upstream.release(None);
    while let Some(piece) = bytes.next().await {
        body.extend_from_slice(&piece?);
    }
    let (text, complete) = client::stream_text(&String::from_utf8(body)?);
    assert_eq!((text, complete), ("word ".repeat(6), true));
    let edge = stack.nth_mut(Role::Edge, 0)?;
    assert!(edge.ended(Duration::from_secs(60)).await?.success(), "{}", edge.log_tail());
    let totals = stack.database.tier_totals(testkit::ProjectId(project.id)).await?;
    assert_eq!((totals.log_rows, totals.open_rows, totals.day_tokens_held), (1, 0, 0));
    Ok(())
}
