//! Images that a request names by URL, for a provider that wants their bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use config::Size;
use http::header::CONTENT_TYPE;
use providers::AddressPolicy;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use testkit::until;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use upstream::{Behaviour, Script};

use crate::script::failing;
use crate::world::{CHAT, Edge, World, body_of, error_of, header, turn};

/// A host of one picture.
struct Host {
    url: String,
    asked: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Host {
    /// One whose picture has so many bytes; without a picture it never answers.
    async fn of(picture: Option<usize>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/picture.png", listener.local_addr()?);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let answer = move || {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                match picture {
                    Some(bytes) => ([(CONTENT_TYPE, "image/png")], vec![7; bytes]).into_response(),
                    None => std::future::pending().await,
                }
            }
        };
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, Router::new().fallback(answer)).await;
        });
        Ok(Self { url, asked, serving })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn world(of: &str, path: &str) -> anyhow::Result<World> {
    let world = World::new().await?;
    let change =
        format!("UPDATE model_connections SET provider_type = '{of}', base_url = replace(base_url, '/v1', '{path}')");
    world.database.execute(&change).await?;
    world.upstream.script(Script {
        path: "*".to_owned(),
        default: Some(Behaviour { content: Some("A lamp.".to_owned()), ..Behaviour::default() }),
        ..Script::default()
    });
    Ok(world)
}

/// An edge that may ask this machine for pictures, with so much memory for bodies.
async fn edge(world: &World, memory_mib: u64) -> anyhow::Result<Edge> {
    let edge = world.edge_tuned(&[], |settings| {
        settings.image_addresses = AddressPolicy::new(false, ["127.0.0.1".to_owned()]);
        settings.bodies = Size::mebibytes(memory_mib);
    });
    edge.await
}

/// A chat that names a picture so many times.
fn ask(edge: &Edge, url: &str, times: usize) -> RequestBuilder {
    let part = json!({ "type": "image_url", "image_url": { "url": url } });
    let mut body = turn(json!({}));
    body["messages"][0]["content"] = Value::Array(vec![part; times]);
    edge.post(CHAT, &body)
}

#[tokio::test]
async fn a_picture_is_fetched_once_and_sent_as_often_as_it_is_named_up_to_eight_times() -> anyhow::Result<()> {
    for (provider, path) in [("gemini", "/v1beta"), ("ollama", "/api")] {
        let (world, host) = (world(provider, path).await?, Host::of(Some(3000)).await?);
        let edge = edge(&world, 512).await?;
        for times in [9, 60_000] {
            let (status, _, code) = error_of(ask(&edge, &host.url, times).send().await?).await;
            assert_eq!((status, code), (400, json!("too_many_images")));
        }
        assert_eq!((host.asked(), world.upstream.log(0).calls.len()), (0, 0));
        body_of(ask(&edge, &host.url, 8).send().await?, 200).await;
        assert_eq!(host.asked(), 1);
        let sent = world.upstream.log(0).calls.pop().unwrap().body.to_string();
        assert_eq!(sent.matches(&STANDARD.encode(vec![7; 3000])).count(), 8, "{provider}");
        let logged = world.logged(3).await?;
        assert_eq!(logged.iter().map(|call| call.status).collect::<Vec<_>>(), [400, 400, 200]);
        assert_eq!(logged[0].charged_tokens, 0);
        edge.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn pictures_and_what_is_made_of_them_take_of_the_memory_for_bodies() -> anyhow::Result<()> {
    let (world, host) = (world("gemini", "/v1beta").await?, Host::of(Some(300 << 10)).await?);
    let edge = edge(&world, 1).await?;
    // The picture and its text are 300 and 400 KiB; the text twice is too much.
    for _ in 0..3 {
        body_of(ask(&edge, &host.url, 1).send().await?, 200).await;
        let (status, kind, code) = error_of(ask(&edge, &host.url, 2).send().await?).await;
        assert_eq!((status, kind.as_str(), code), (503, "server_error", json!("overloaded")));
    }
    for call in world.logged(6).await?.iter().filter(|call| call.status != 200) {
        assert_eq!((call.status, call.charged_requests, call.charged_tokens), (503, 0, 0));
    }
    // The picture itself is too much.
    let large = Host::of(Some(1100 << 10)).await?;
    assert_eq!(error_of(ask(&edge, &large.url, 1).send().await?).await.0, 503);
    assert_eq!(world.upstream.log(0).calls.len(), 3);
    edge.stop().await
}

#[tokio::test]
async fn a_call_that_waits_for_a_picture_ends_with_its_key() -> anyhow::Result<()> {
    let (world, host) = (world("gemini", "/v1beta").await?, Host::of(None).await?);
    let settings = [("IMAGE_FETCH_TIMEOUT", "600s")];
    let edge = world.edge_tuned(&settings, |settings| {
        settings.image_addresses = AddressPolicy::new(false, ["127.0.0.1".to_owned()]);
    });
    let edge = edge.await?;
    let call = tokio::spawn(ask(&edge, &host.url, 1).send());
    until("the picture is asked for", async || Ok(host.asked() == 1)).await?;
    world.database.change_key(world.key_id, "revoked_at = clock_timestamp()").await?;
    let answer = tokio::time::timeout(testkit::DEADLINE, call).await??;
    assert_eq!(error_of(answer?).await, (401, "invalid_api_key".to_owned(), json!("key_revoked")));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.status, logged.charged_requests, logged.charged_tokens), (401, 0, 0), "nothing was sent");
    edge.stop().await
}

#[tokio::test]
async fn pictures_that_do_not_all_come_in_time_are_given_up() -> anyhow::Result<()> {
    let (world, host) = (world("gemini", "/v1beta").await?, Host::of(None).await?);
    let edge = world.edge_tuned(&[], |settings| {
        settings.image_addresses = AddressPolicy::new(false, ["127.0.0.1".to_owned()]);
        settings.image_fetch_timeout = Duration::from_millis(50);
    });
    let edge = edge.await?;
    let (status, _, code) = error_of(ask(&edge, &host.url, 1).send().await?).await;
    assert_eq!((status, code), (400, json!("image_fetch_failed")));
    edge.stop().await
}

#[tokio::test]
async fn a_picture_that_cannot_be_had_leads_to_the_next_place_that_fetches_it_itself() -> anyhow::Result<()> {
    let world = world("gemini", "/v1beta").await?;
    let spare = world.database.insert_connection("spare", &world.upstream.base_url(), "spare-chat").await?;
    world.database.add_target(world.route, spare, 1, 1).await?;
    let edge = edge(&world, 512).await?;
    // Nobody listens there.
    let url = "http://127.0.0.1:1/picture.png";
    let answer = ask(&edge, url, 1).send().await?;
    let named = [header(&answer, "x-ragmux-attempts"), header(&answer, "x-ragmux-connection")];
    assert_eq!((answer.status().as_u16(), named), (200, [Some("1"), Some("spare")]));
    assert_eq!(body_of(answer, 200).await["choices"][0]["message"]["content"], "A lamp.");
    let calls = world.upstream.log(0).calls;
    assert_eq!((calls.len(), calls[0].path.as_str()), (1, CHAT));
    assert!(calls[0].body.to_string().contains(url));
    let logged = world.the_logged_call().await?;
    assert_eq!((logged.model.as_deref(), logged.attempts, logged.status), (Some("spare-chat"), 1, 200));

    // What a place answers that could do it is told in the end.
    world.next_chat(failing(422));
    assert_eq!(ask(&edge, url, 1).send().await?.status(), 422);

    let change = "provider_type = 'ollama', base_url = replace(base_url, '/v1', '/api')";
    world.database.change_connection(spare, change).await?;
    until("no place fetches pictures itself", async || Ok(ask(&edge, url, 1).send().await?.status() == 400)).await?;
    let (status, kind, code) = error_of(ask(&edge, url, 1).send().await?).await;
    assert_eq!((status, kind.as_str(), code), (400, "invalid_request_error", json!("image_fetch_failed")));
    let logged = world.logged(4).await?;
    let refused = logged.iter().rfind(|call| call.status == 400).unwrap();
    assert_eq!(refused.error_code.as_deref(), Some("image_fetch_failed"));
    assert_eq!((refused.charged_tokens, refused.charged_cost), (0, 0));
    edge.stop().await
}
