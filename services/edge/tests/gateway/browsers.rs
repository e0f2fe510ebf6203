//! Calls from web pages.

use reqwest::{Method, Response};
use serde_json::json;

use crate::world::{CHAT, Edge, World, error_of, header};

const PAGE: &str = "https://app.example.com";

async fn preflight(edge: &Edge, origin: &str) -> anyhow::Result<Response> {
    let asked = "authorization, content-type, x-stainless-lang";
    Ok(edge
        .bare(Method::OPTIONS, CHAT)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", asked)
        .send()
        .await?)
}

fn may_read(answer: &Response, name: &str) -> bool {
    header(answer, "access-control-expose-headers").unwrap_or_default().split(',').any(|exposed| exposed == name)
}

#[tokio::test]
async fn pages_of_the_origins_that_are_named_may_call_and_read_what_clients_need() -> anyhow::Result<()> {
    let world = World::with("requests_per_minute = 100").await?;
    let edge = world.edge_with(&[("CORS_ORIGINS", "https://other.example, https://APP.example.com/")]).await?;
    let answer = preflight(&edge, PAGE).await?;
    assert_eq!(answer.status(), 200);
    for (name, value) in [
        ("access-control-allow-origin", Some(PAGE)),
        ("access-control-allow-methods", Some("GET,POST")),
        ("access-control-allow-headers", Some("authorization, content-type, x-stainless-lang")),
        ("access-control-max-age", Some("600")),
        ("access-control-allow-credentials", None),
    ] {
        assert_eq!(header(&answer, name), value, "{name}");
    }
    assert!(header(&answer, "vary").unwrap().contains("origin"));
    assert!(header(&answer, "x-request-id").is_some());

    let answer = edge.chat(json!({ "stream": true })).header("origin", PAGE).send().await?;
    assert_eq!(header(&answer, "access-control-allow-origin"), Some(PAGE));
    for name in answer.headers().keys().filter(|name| name.as_str().starts_with("x-r")) {
        assert!(may_read(&answer, name.as_str()), "{name}");
    }
    // An error is one a page can read too, and so is the answer to a page that is not named; only its browser keeps the
    // latter from it.
    let refused = edge.bare(Method::POST, CHAT).header("origin", PAGE).send().await?;
    assert_eq!(header(&refused, "access-control-allow-origin"), Some(PAGE));
    assert!(may_read(&refused, "x-request-id"));
    assert_eq!(error_of(refused).await.0, 401);
    for origin in ["https://evil.example", "https://app.example.com.evil.example", "http://app.example.com", "null"] {
        assert_eq!(header(&preflight(&edge, origin).await?, "access-control-allow-origin"), None, "{origin}");
        let answer = edge.get("/v1/models").header("origin", origin).send().await?;
        assert_eq!(header(&answer, "access-control-allow-origin"), None, "{origin}");
    }
    edge.stop().await
}

#[tokio::test]
async fn every_page_may_call_where_that_is_said_and_none_where_nothing_is() -> anyhow::Result<()> {
    let world = World::new().await?;
    let open = world.edge_with(&[("CORS_ORIGINS", "*")]).await?;
    let answer = preflight(&open, PAGE).await?;
    assert_eq!(header(&answer, "access-control-allow-origin"), Some("*"));
    assert_eq!(header(&answer, "access-control-allow-credentials"), None);
    let closed = world.edge().await?;
    let answer = preflight(&closed, PAGE).await?;
    assert_eq!((answer.status().as_u16(), header(&answer, "access-control-allow-origin")), (405, None));
    let answer = closed.get("/v1/models").header("origin", PAGE).send().await?;
    assert!(!answer.headers().keys().any(|name| name.as_str().starts_with("access-control")));
    open.stop().await?;
    closed.stop().await
}
