//! Keys that do not exist, many of them.

use domain::{ApiKey, KeyKind};
use reqwest::{Method, Response};
use serde_json::json;

use crate::world::{Edge, Path, World, error_of, header};

async fn models(edge: &Edge, key: &ApiKey, forwarded_for: Option<&str>) -> anyhow::Result<Response> {
    let request = edge.bare(Method::GET, "/v1/models").bearer_auth(key.secret().expose());
    let request = match forwarded_for {
        Some(addresses) => request.header("x-forwarded-for", addresses),
        None => request,
    };
    Ok(request.send().await?)
}

/// Sends unknown keys until that is too much; the answer to the last, and its key.
async fn guess(edge: &Edge, forwarded_for: Option<&str>) -> anyhow::Result<(Response, ApiKey)> {
    for _ in 0..1000 {
        let key = ApiKey::generate(KeyKind::Gateway);
        let answer = models(edge, &key, forwarded_for).await?;
        if answer.status() != 401 {
            return Ok((answer, key));
        }
    }
    anyhow::bail!("nobody was told to stop")
}

fn throttled() -> (u16, String, serde_json::Value) {
    (429, "rate_limit_exceeded".to_owned(), json!("too_many_unknown_keys"))
}

fn unknown() -> (u16, String, serde_json::Value) {
    (401, "invalid_api_key".to_owned(), json!("invalid_api_key"))
}

#[tokio::test]
async fn who_guesses_keys_is_told_to_stop_and_good_keys_work_beside_it() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let (seen, unseen) = (&world.key, world.database.insert_user("ann").await?);
    let (_, unseen) = world.database.insert_user_key(unseen, "k", &["models"], &[world.project]).await?;
    assert_eq!(models(&edge, seen, None).await?.status(), 200);
    // What is no key at all costs nothing, and never counts.
    for _ in 0..100 {
        let answer = edge.bare(Method::GET, "/v1/models").bearer_auth("sk-user-nonsense").send().await?;
        assert_eq!(answer.status(), 401);
    }
    let (answer, _) = guess(&edge, None).await?;
    let retry_after: u64 = header(&answer, "retry-after").unwrap().parse()?;
    assert!((1..=2).contains(&retry_after), "{retry_after}");
    assert_eq!(error_of(answer).await, throttled());
    assert_eq!(models(&edge, seen, None).await?.status(), 200);
    assert_eq!(models(&edge, &unseen, None).await?.status(), 200, "one that this edge has not seen before");
    let mistyped = edge.bare(Method::GET, "/v1/models").bearer_auth("sk-user-nonsense").send().await?;
    assert_eq!(error_of(mistyped).await, unknown());
    // Nobody is believed who says where it comes from.
    assert_eq!(error_of(guess(&edge, Some("192.0.2.1")).await?.0).await, throttled());
    edge.stop().await
}

#[tokio::test]
async fn behind_a_trusted_proxy_its_clients_are_told_apart() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("TRUSTED_PROXY_CIDRS", "127.0.0.0/8, 10.0.0.0/8")]).await?;
    let (answer, _) = guess(&edge, Some("192.0.2.1, 198.51.100.7, 10.1.2.3")).await?;
    assert_eq!(error_of(answer).await, throttled());
    let with = async |forwarded_for| {
        let key = ApiKey::generate(KeyKind::Gateway);
        anyhow::Ok(error_of(models(&edge, &key, forwarded_for).await?).await)
    };
    // Whatever it puts in front itself it stays the client that the proxy has seen.
    assert_eq!(with(Some("192.0.2.2, 198.51.100.7")).await?, throttled());
    assert_eq!(with(Some("198.51.100.8")).await?, unknown());
    assert_eq!(with(None).await?, unknown());
    assert_eq!(error_of(guess(&edge, Some("2001:db8:0:1::1")).await?.0).await, throttled());
    assert_eq!(with(Some("2001:db8:0:1:ffff::2")).await?, throttled());
    assert_eq!(with(Some("2001:db8:0:2::1")).await?, unknown());
    edge.stop().await
}

#[tokio::test]
async fn a_key_that_was_just_found_unknown_is_so_without_the_database() -> anyhow::Result<()> {
    let world = World::new().await?;
    let path = Path::to(&world.database).await?;
    let edge = Edge::start(&path.url, world.key.secret().expose(), &[("DB_ACQUIRE_TIMEOUT", "500ms")]).await?;
    edge.until_ready().await?;
    testkit::until("it is answered from memory", async || {
        path.block(false);
        let key = ApiKey::generate(KeyKind::Project);
        if models(&edge, &key, None).await?.status() != 401 {
            return Ok(false);
        }
        path.block(true);
        // That lasts for a few seconds only, then it is as good as any that nobody knows.
        let answer = error_of(models(&edge, &key, None).await?).await;
        assert!(answer == unknown() || answer.0 == 503, "{answer:?}");
        Ok(answer == unknown())
    })
    .await?;
    let other = error_of(models(&edge, &ApiKey::generate(KeyKind::Project), None).await?).await;
    assert_eq!(other, (503, "server_error".to_owned(), json!("unavailable")));
    edge.stop().await
}
