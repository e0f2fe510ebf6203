//! Keys, scopes and projects.

use domain::{ApiKey, KeyKind};
use reqwest::Method;
use serde_json::json;
use store::Topic;
use testkit::{DatabaseProxy, RoleName, until};

use crate::world::{CHAT, Edge, Path, World, error_of, header, turn};

async fn models_with(edge: &Edge, key: &ApiKey) -> (u16, String, serde_json::Value) {
    let answer = edge.bare(Method::GET, "/v1/models").bearer_auth(key.secret().expose()).send().await.unwrap();
    if answer.status() == 200 { (200, String::new(), json!(null)) } else { error_of(answer).await }
}

#[tokio::test]
async fn who_has_no_good_key_is_refused() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let without = edge.bare(Method::POST, CHAT).json(&turn(json!({}))).send().await?;
    assert_eq!(header(&without, "www-authenticate"), Some("Bearer"));
    assert_eq!(error_of(without).await, (401, "invalid_request_error".to_owned(), json!(null)));

    let mistyped = format!("{}x", world.key.secret().expose());
    let unknown = ApiKey::generate(KeyKind::Project);
    let management = ApiKey::generate(KeyKind::Management);
    for key in ["hello", &mistyped, unknown.secret().expose(), management.secret().expose()] {
        let answer = edge.bare(Method::GET, "/v1/models").bearer_auth(key).send().await?;
        assert_eq!(error_of(answer).await, (401, "invalid_api_key".to_owned(), json!("invalid_api_key")), "{key}");
    }
    let plain = edge.bare(Method::GET, "/v1/models").header("x-api-key", world.key.secret().expose()).send().await?;
    assert_eq!(plain.status(), 200);
    edge.stop().await
}

#[tokio::test]
async fn every_change_of_a_key_is_heard_of() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let user = world.database.insert_user("ann").await?;
    let (id, key) = world.database.insert_user_key(user, "k", &["models"], &[world.project]).await?;
    assert_eq!(models_with(&edge, &key).await.0, 200);
    world.database.change_key(id, "revoked_at = clock_timestamp()").await?;
    until("the key is refused", async || Ok(models_with(&edge, &key).await.2 == "key_revoked")).await?;
    world.database.change_key(id, "revoked_at = NULL, expires_at = clock_timestamp()").await?;
    until("the key has expired", async || Ok(models_with(&edge, &key).await.2 == "key_expired")).await?;
    world.database.change_key(id, "expires_at = NULL").await?;
    until("the key works again", async || Ok(models_with(&edge, &key).await.0 == 200)).await?;
    world.database.change_user(user, "active = false").await?;
    until("the owner is gone", async || Ok(models_with(&edge, &key).await.2 == "key_owner_inactive")).await?;
    edge.stop().await
}

#[tokio::test]
async fn a_call_needs_the_scope_of_its_route() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let user = world.database.insert_user("ann").await?;
    let (_, key) = world.database.insert_user_key(user, "k", &["models"], &[world.project]).await?;
    let key = key.secret().expose();
    assert_eq!(edge.bare(Method::GET, "/v1/models").bearer_auth(key).send().await?.status(), 200);
    let scope = json!("insufficient_scope");
    for path in [CHAT, "/v1/embeddings", "/v1/retrieve"] {
        // The body is not even looked at.
        let answer = edge.bare(Method::POST, path).bearer_auth(key).body("{").send().await?;
        assert_eq!(error_of(answer).await, (403, "insufficient_scope".to_owned(), scope.clone()), "{path}");
    }
    edge.stop().await
}

#[tokio::test]
async fn a_key_for_several_projects_names_one() -> anyhow::Result<()> {
    let world = World::new().await?;
    let second = world.database.insert_project("büro", "").await?;
    world.database.insert_route(second, "slow", world.connection).await?;
    let third = world.database.insert_project("third", "").await?;
    let user = world.database.insert_user("ann").await?;
    let (id, key) = world.database.insert_user_key(user, "k", &["models", "chat"], &[world.project, second]).await?;
    let edge = world.edge().await?;
    let ask = |project: Option<String>| {
        let request = edge.bare(Method::GET, "/v1/models").bearer_auth(key.secret().expose());
        match project {
            Some(project) => request.header("x-ragmux-project", project),
            None => request,
        }
    };
    let none = ask(None).send().await?;
    assert_eq!(header(&none, "x-ragmux-projects"), Some("shop,b?ro"));
    assert_eq!(error_of(none).await, (400, "invalid_request_error".to_owned(), json!("project_required")));
    for name in ["büro".to_owned(), second.to_string()] {
        let answer = ask(Some(name)).send().await?;
        assert_eq!(answer.json::<serde_json::Value>().await?["data"][0]["id"], "slow");
    }
    let refused = (403, "invalid_request_error".to_owned(), json!("project_not_granted"));
    for name in ["third".to_owned(), third.to_string(), "nowhere".to_owned()] {
        assert_eq!(error_of(ask(Some(name)).send().await?).await, refused);
    }
    world.database.change_key(id, &format!("default_project_id = {second}")).await?;
    until("the default project counts", async || {
        let answer = ask(None).send().await?;
        Ok(answer.status() == 200 && answer.json::<serde_json::Value>().await?["data"][0]["id"] == "slow")
    })
    .await?;
    edge.stop().await
}

#[tokio::test]
async fn a_database_that_is_away_makes_no_key_invalid() -> anyhow::Result<()> {
    let world = World::new().await?;
    let path = Path::to(&world.database).await?;
    let settings = [("DB_ACQUIRE_TIMEOUT", "500ms")];
    let edge = Edge::start(&path.url, world.key.secret().expose(), &settings).await?;
    edge.until_ready().await?;
    assert_eq!(edge.get("/v1/models").send().await?.status(), 200);
    path.block(true);
    let unavailable = (503, "server_error".to_owned(), json!("unavailable"));
    let unseen = ApiKey::generate(KeyKind::Project);
    let answer = edge.bare(Method::GET, "/v1/models").bearer_auth(unseen.secret().expose()).send().await?;
    assert!(header(&answer, "retry-after").is_some());
    assert_eq!(error_of(answer).await, unavailable);
    // A key that is known is still known; a call has to be admitted all the same.
    assert_eq!(edge.get("/v1/models").send().await?.status(), 200);
    assert_eq!(error_of(edge.chat(json!({})).send().await?).await, unavailable);
    assert_eq!(world.upstream.counters().requests, 0);
    path.block(false);
    until("calls are served again", async || Ok(edge.chat(json!({})).send().await?.status() == 200)).await?;
    edge.stop().await
}

#[tokio::test]
async fn a_listener_that_has_fallen_silent_is_replaced() -> anyhow::Result<()> {
    let world = World::new().await?;
    let proxy = DatabaseProxy::to(&world.database).await?;
    let url = proxy.url(&world.database, RoleName::Edge)?;
    let edge = Edge::start(&url, world.key.secret().expose(), &[("DB_ACQUIRE_TIMEOUT", "500ms")]).await?;
    edge.until_ready().await?;
    let listening = async || world.database.listening_sessions(Topic::Config).await;
    until("the edge listens", async || Ok(listening().await? == 1)).await?;
    proxy.fall_silent();
    proxy.speak_again();
    world.database.change_project(world.project, "requests_per_minute = 100").await?;
    // The server knows nothing of the silence: to it the old one listens still.
    until("the edge listens anew", async || Ok(listening().await? == 2)).await?;
    edge.stop().await
}
