//! Every setting of an edge has an effect.

use serde_json::json;
use tokio::net::TcpListener;
use upstream::Behaviour;

use crate::stream::events;
use crate::world::{World, body_of, error_of};

#[tokio::test]
async fn private_addresses_are_called_only_where_they_are_allowed() -> anyhow::Result<()> {
    let world = World::new().await?;
    let refused = world.edge_with(&[("ALLOW_PRIVATE_UPSTREAMS", "false")]).await?;
    let told = error_of(refused.chat(json!({})).send().await?).await;
    assert_eq!(told, (502, "upstream_error".to_owned(), json!("upstream_refused")));
    assert_eq!(world.upstream.counters().requests, 0);
    let listed = [("ALLOW_PRIVATE_UPSTREAMS", "false"), ("PRIVATE_UPSTREAM_ALLOWLIST", "127.0.0.1")];
    let allowed = world.edge_with(&listed).await?;
    assert_eq!(allowed.chat(json!({})).send().await?.status(), 200);
    refused.stop().await?;
    allowed.stop().await
}

#[tokio::test]
async fn a_provider_that_never_answers_is_not_waited_for_without_end() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.every_chat(Behaviour { hang: true, ..Behaviour::default() });
    for setting in ["UPSTREAM_TIMEOUT", "STREAM_MAX_DURATION"] {
        let edge = world.edge_with(&[(setting, "1s")]).await?;
        for stream in [false, true] {
            let told = error_of(edge.chat(json!({ "stream": stream })).send().await?).await;
            assert_eq!(told, (504, "upstream_error".to_owned(), json!("upstream_timeout")), "{setting}");
        }
        edge.stop().await?;
    }
    for logged in world.logged(4).await? {
        assert_eq!((logged.status, logged.charged_requests, logged.charged_tokens), (504, 0, 0));
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_has_a_largest_size() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("STREAM_MAX_BYTES_MB", "1")]).await?;
    world.next_chat(Behaviour { content: Some("x".repeat(64 * 1024)), chunks: Some(40), ..Behaviour::default() });
    let (chunks, done) = events(&edge.chat(json!({ "stream": true })).send().await?.text().await?);
    assert!(!done);
    assert_eq!(chunks.last().unwrap()["error"]["code"], "upstream_too_large");
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.state.as_str()), (502, "estimated"));
    edge.stop().await
}

#[tokio::test]
async fn an_edge_goes_on_serving_while_load_balancers_take_notice() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("SHUTDOWN_DELAY", "10m")]).await?;
    edge.stop.begin();
    testkit::until("it is not ready any more", async || Ok(edge.ready().await?.0 == 503)).await?;
    assert_eq!(edge.ready().await?.1["status"], "draining");
    let answer = edge.chat(json!({})).send().await?;
    assert_eq!(answer.headers()["connection"], "close");
    body_of(answer, 200).await;
    // A second signal cuts the delay short.
    edge.stop().await
}

#[tokio::test]
async fn a_port_that_is_taken_is_said_to_be() -> anyhow::Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0").await?;
    let address = taken.local_addr()?.to_string();
    for setting in ["EDGE_LISTEN", "HEALTH_GRPC_LISTEN"] {
        let url = "postgres://nobody@127.0.0.1:1/nothing";
        let refused = crate::world::Edge::start(url, "", &[(setting, address.as_str())]).await.err().unwrap();
        assert!(refused.to_string().contains(&format!("cannot listen on {address}")), "{refused}");
    }
    Ok(())
}
