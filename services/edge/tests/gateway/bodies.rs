//! What a client may send, how much of it, and what of it goes on.

use bytes::Bytes;
use config::Size;
use reqwest::{Body, RequestBuilder};
use serde_json::{Value, json};
use testkit::until;
use upstream::{Behaviour, Wait};

use crate::world::{CHAT, Edge, World, body_of, error_of, header, turn};

/// A chat whose body comes in pieces and without its length.
fn chunked(edge: &Edge, pieces: Vec<Bytes>) -> RequestBuilder {
    let pieces = futures::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
    edge.post(CHAT, &json!({})).body(Body::wrap_stream(pieces))
}

#[tokio::test]
async fn a_body_over_32_mib_is_refused_announced_or_not() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let large = edge.chat(json!({ "user": "x".repeat(32 * 1024 * 1024) })).send().await?;
    let body = body_of(large, 413).await;
    assert_eq!(body["error"]["code"], "request_too_large");
    assert!(body["error"]["message"].as_str().unwrap().contains("33554432 bytes"), "{body}");
    let piece = Bytes::from(vec![b' '; 1024 * 1024]);
    let mut pieces = vec![piece; 32];
    pieces.push(Bytes::from(turn(json!({})).to_string()));
    let told = error_of(chunked(&edge, pieces).send().await?).await;
    assert_eq!(told, (413, "invalid_request_error".to_owned(), json!("request_too_large")));
    // In pieces that are not too many it is like any other.
    let text = turn(json!({})).to_string();
    let pieces = text.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
    assert_eq!(chunked(&edge, pieces).send().await?.status(), 200);
    edge.stop().await
}

#[tokio::test]
async fn bodies_that_together_take_too_much_memory_are_refused_until_there_is_room() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_tuned(&[], |settings| settings.bodies = Size::mebibytes(1)).await?;
    let large = |bytes: usize| json!({ "user": "x".repeat(bytes) });
    world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
    let held = tokio::spawn(edge.chat(large(700 * 1024)).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let answer = edge.chat(large(400 * 1024)).send().await?;
    assert_eq!(header(&answer, "retry-after"), Some("1"));
    assert_eq!(error_of(answer).await, (503, "server_error".to_owned(), json!("overloaded")));
    assert_eq!(edge.chat(json!({})).send().await?.status(), 200, "a small one finds its place");
    world.upstream.release(None);
    assert_eq!(held.await??.status(), 200);
    until("there is room", async || Ok(edge.chat(large(700 * 1024)).send().await?.status() == 200)).await?;
    // A refusal is before everything else: it leaves no trace.
    assert_eq!(world.logged(3).await?.iter().filter(|call| call.status != 200).count(), 0);
    edge.stop().await
}

#[tokio::test]
async fn a_body_may_be_nested_128_deep_and_not_deeper_on_any_route() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    for path in [CHAT, "/v1/embeddings", "/v1/retrieve"] {
        let body = |levels: usize| {
            let members = r#""model":"fast","messages":[{"role":"user","content":"a"}],"input":"a","query":"a""#;
            format!(r#"{{{members},"x":{}}}"#, nested(levels))
        };
        let send = async |body: String| anyhow::Ok(edge.post(path, &json!({})).body(body).send().await?);
        let told = body_of(send(body(128)).await?, 400).await;
        assert_eq!(told["error"]["message"], "the JSON body is nested deeper than 128 levels", "{path}");
        let told: Value = serde_json::from_str(&send(body(127)).await?.text().await?)?;
        assert_ne!(told["error"]["message"], "the JSON body is nested deeper than 128 levels", "{path}");
    }
    edge.stop().await
}

#[tokio::test]
async fn nothing_of_the_clients_headers_goes_upstream() -> anyhow::Result<()> {
    let world = World::new().await?;
    let connection = world.database.insert_connection("embed", &world.upstream.base_url(), "demo-embed").await?;
    world.database.insert_route(world.project, "vectors", connection).await?;
    let edge = world.edge().await?;
    let requests = [
        edge.chat(json!({})),
        edge.chat(json!({ "stream": true })),
        edge.post("/v1/embeddings", &json!({ "model": "vectors", "input": "a" })),
    ];
    for request in requests {
        let request = request
            .header("cookie", "session=1")
            .header("x-ragmux-tags", "team=a")
            .header("x-ragmux-anything", "1")
            .header("x-request-id", "mine")
            .header("x-forwarded-for", "10.0.0.1")
            .header("openai-organization", "org")
            .header("user-agent", "client/1");
        let answer = request.send().await?;
        assert_ne!(header(&answer, "x-request-id"), Some("mine"));
        assert_eq!(answer.status(), 200);
        answer.bytes().await?;
    }
    let calls = world.upstream.log(0).calls;
    assert_eq!(calls.len(), 3);
    for call in calls {
        let mut names: Vec<&str> = call.headers.keys().map(String::as_str).collect();
        names.sort_unstable();
        // The connection has no credential, so there is no authorization of ours either.
        assert_eq!(names, ["accept", "accept-encoding", "content-length", "content-type", "host", "user-agent"]);
        assert!(call.headers["user-agent"].starts_with("ragmux/"));
    }
    edge.stop().await
}
