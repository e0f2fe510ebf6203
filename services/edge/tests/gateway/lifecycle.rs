//! The start and the end of an edge.

use serde_json::json;
use store::schema;
use testkit::{RoleName, until};
use upstream::{Behaviour, Wait};

use crate::stream::{content, events};
use crate::world::{Edge, World, error_of};

#[tokio::test]
async fn an_edge_that_is_started_first_waits_for_the_schema() -> anyhow::Result<()> {
    let database = testkit::unmigrated_database().await?;
    let edge = Edge::start(database.url(RoleName::Edge).expose(), "", &[]).await?;
    until("it waits for the schema", async || {
        let (status, report) = edge.ready().await?;
        Ok(status == 503 && report["status"] == "migrating")
    })
    .await?;
    let starting = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!(starting, (503, "server_error".to_owned(), json!("starting")));
    schema::migrate(&database.config(RoleName::Owner), false).await?;
    edge.until_ready().await?;
    assert_eq!(error_of(edge.chat(json!({})).send().await?).await.0, 401);
    let instances = database.store(RoleName::Edge)?.list_instances().await?;
    assert_eq!(instances[0].service, "edge");
    edge.stop().await
}

#[tokio::test]
async fn an_edge_with_another_key_refuses_to_start() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let url = world.database.url(RoleName::Edge).expose().to_owned();
    let mut other = Edge::start(&url, "", &[("SECRET_KEY", &"ab".repeat(32))]).await?;
    let refused = other.ended().await.unwrap_err().to_string();
    assert!(refused.starts_with("SECRET_KEY does not match"), "{refused}");
    edge.stop().await
}

#[tokio::test]
async fn an_edge_that_waits_for_its_database_can_be_stopped() -> anyhow::Result<()> {
    let mut edge = Edge::start("postgres://nobody@127.0.0.1:1/nothing", "", &[]).await?;
    until("it answers", async || Ok(edge.ready().await?.0 == 503)).await?;
    edge.stop.begin();
    let ended = edge.ended().await.unwrap_err();
    assert!(matches!(ended.downcast_ref(), Some(runtime::StartError::Stopped)), "{ended}");
    Ok(())
}

#[tokio::test]
async fn a_stream_is_finished_before_the_edge_ends() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("SHUTDOWN_DRAIN", "60s")]).await?;
    world.next_chat(Behaviour {
        content: Some("w ".to_owned()),
        chunks: Some(6),
        hold_after_events: Some(3),
        ..Behaviour::default()
    });
    let answer = edge.chat(json!({ "stream": true })).send().await?;
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let address = edge.address;
    let stopping = tokio::spawn(edge.stop());
    until("the port is closed", async || Ok(tokio::net::TcpStream::connect(address).await.is_err())).await?;
    assert!(!stopping.is_finished());
    world.upstream.release(None);
    let (chunks, done) = events(&answer.text().await?);
    assert_eq!((content(&chunks), done), ("w ".repeat(6), true));
    stopping.await??;
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str()), (200, "final"));
    Ok(())
}

#[tokio::test]
async fn what_outlasts_the_drain_is_cut_in_the_protocol_and_settled() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("SHUTDOWN_DRAIN", "0")]).await?;
    world.next_chat(Behaviour {
        content: Some("w ".to_owned()),
        chunks: Some(6),
        hold_after_events: Some(3),
        ..Behaviour::default()
    });
    let streaming = edge.chat(json!({ "stream": true })).send().await?;
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let waiting = tokio::spawn(edge.chat(json!({})).send());
    world.upstream_until(Wait { held: Some(2), ..Wait::default() }).await?;
    edge.stop().await?;
    let (chunks, done) = events(&streaming.text().await?);
    assert!(!done);
    assert_eq!(chunks.last().unwrap()["error"]["code"], "shutting_down");
    assert_eq!(error_of(waiting.await??).await, (503, "server_error".to_owned(), json!("shutting_down")));
    let logged = world.database.logged_calls(world.project).await?;
    let ended: Vec<_> = logged.iter().map(|call| (call.status, call.error_code.as_deref())).collect();
    assert_eq!(ended, [(499, Some("shutting_down")), (499, Some("shutting_down"))]);
    assert_eq!((logged[0].charged_requests, logged[1].charged_requests), (1, 0));
    let totals = world.database.tier_totals(world.project).await?;
    assert_eq!((totals.open_calls, totals.open_rows, totals.day_tokens_held), (0, 0, 0));
    assert!(world.database.store(RoleName::Edge)?.list_instances().await?.is_empty());
    Ok(())
}
