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
    assert_eq!(header(&none, "x-ragmux-projects"), Some(format!("shop, {second}").as_str()));
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
async fn of_several_reasons_the_one_that_lasts_longest_is_told() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let user = world.database.insert_user("ann").await?;
    let (id, key) = world.database.insert_user_key(user, "k", &["models"], &[world.project]).await?;
    let revoked = "revoked_at = clock_timestamp()";
    let expired = "expires_at = clock_timestamp()";
    let not_revoked = "revoked_at = NULL";
    let not_expired = "expires_at = NULL";
    for (set, is_active, told) in [
        ([revoked, expired], false, Some("key_revoked")),
        ([revoked, not_expired], false, Some("key_revoked")),
        ([revoked, expired], true, Some("key_revoked")),
        ([not_revoked, expired], false, Some("key_expired")),
        ([not_revoked, expired], true, Some("key_expired")),
        ([not_revoked, not_expired], false, Some("key_owner_inactive")),
        ([not_revoked, not_expired], true, None),
    ] {
        world.database.change_user(user, &format!("active = {is_active}")).await?;
        world.database.change_key(id, &set.join(", ")).await?;
        until(&format!("{told:?} is told"), async || {
            let answer = models_with(&edge, &key).await;
            let refused = (401, "invalid_api_key".to_owned(), json!(told));
            Ok(if told.is_some() { answer == refused } else { answer.0 == 200 })
        })
        .await?;
    }
    // What the key may do is looked at only when the key is good.
    world.database.change_key(id, revoked).await?;
    until("the key is refused", async || {
        let answer = edge.bare(Method::POST, CHAT).bearer_auth(key.secret().expose()).body("{").send().await?;
        Ok(error_of(answer).await.2 == "key_revoked")
    })
    .await?;
    edge.stop().await
}

#[tokio::test]
async fn a_key_may_spend_whatever_the_role_of_its_owner() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    for role in ["viewer", "editor", "admin"] {
        let user = world.database.insert_user(role).await?;
        world.database.change_user(user, &format!("role = '{role}'")).await?;
        let (_, key) = world.database.insert_user_key(user, "k", &["chat"], &[world.project]).await?;
        let chat = edge.bare(Method::POST, CHAT).bearer_auth(key.secret().expose()).json(&turn(json!({})));
        assert_eq!(chat.send().await?.status(), 200, "{role}");
    }
    edge.stop().await
}

#[tokio::test]
async fn a_key_sees_and_calls_the_routes_of_its_list() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.database.insert_route(world.project, "slow", world.connection).await?;
    let edge = world.edge().await?;
    let user = world.database.insert_user("ann").await?;
    let scopes = ["chat", "models", "embeddings"];
    let (id, key) = world.database.insert_user_key(user, "k", &scopes, &[world.project]).await?;
    let names = async || {
        let answer = edge.bare(Method::GET, "/v1/models").bearer_auth(key.secret().expose()).send().await?;
        let body: serde_json::Value = answer.json().await?;
        let names = body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
        anyhow::Ok(names.collect::<Vec<_>>())
    };
    let call = async |path: &str, model: &str| {
        let mut body = turn(json!({ "model": model }));
        body["input"] = json!("moon");
        let answer = edge.bare(Method::POST, path).bearer_auth(key.secret().expose()).json(&body).send().await?;
        let status = answer.status().as_u16();
        anyhow::Ok(if status == 200 { (200, json!(null)) } else { (status, error_of(answer).await.2) })
    };
    let missing = (404, json!("model_not_found"));
    let fine = (200, json!(null));
    for (list, seen, fast, slow, other) in [
        ("NULL", vec!["fast", "slow"], &fine, &fine, &fine),
        // The default route is not on the list, so names that are no route's lead nowhere.
        ("ARRAY['slow']", vec!["slow"], &missing, &fine, &missing),
        ("ARRAY['fast', 'gone']", vec!["fast"], &fine, &fine, &fine),
        ("ARRAY[]::text[]", vec![], &missing, &missing, &missing),
    ] {
        world.database.change_key(id, &format!("allowed_routes = {list}")).await?;
        until(&format!("{list} counts"), async || Ok(names().await? == seen)).await?;
        for path in [CHAT, "/v1/embeddings"] {
            for (model, told) in [("fast", fast), ("slow", slow), ("other", other)] {
                assert_eq!(&call(path, model).await?, told, "{list} {path} {model}");
            }
        }
        for model in ["fast", "slow"] {
            let path = format!("/v1/models/{model}");
            let shown = edge.bare(Method::GET, &path).bearer_auth(key.secret().expose()).send().await?;
            assert_eq!(shown.status() == 200, seen.contains(&model), "{list} {model}");
        }
    }
    edge.stop().await
}

#[tokio::test]
async fn an_old_secret_works_until_its_grace_is_over() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let user = world.database.insert_user("ann").await?;
    let (id, old) = world.database.insert_user_key(user, "k", &["models"], &[world.project]).await?;
    assert_eq!(models_with(&edge, &old).await.0, 200);
    let new = world.database.rotate_key(id, KeyKind::Gateway, 3_600_000).await?;
    for key in [&old, &new] {
        assert_eq!(models_with(&edge, key).await.0, 200);
    }
    // The end is the database's to tell; the edge hears nothing at that moment.
    world.database.change_key(id, "previous_valid_until = clock_timestamp() + interval '2 s'").await?;
    let unknown = (401, "invalid_api_key".to_owned(), json!("invalid_api_key"));
    until("the grace is over", async || Ok(models_with(&edge, &old).await == unknown)).await?;
    let found = world.database.store(RoleName::Edge)?.find_principal(&old.hash()).await?;
    assert!(found.is_none(), "the edge was not early");
    let newest = world.database.rotate_key(id, KeyKind::Gateway, 0).await?;
    until("without grace it ends at once", async || Ok(models_with(&edge, &new).await == unknown)).await?;
    assert_eq!(models_with(&edge, &newest).await.0, 200);
    assert_eq!(models_with(&edge, &old).await, unknown);
    edge.stop().await
}

#[tokio::test]
async fn a_key_without_grants_and_a_projects_key_elsewhere_are_granted_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    let other = world.database.insert_project("other", "").await?;
    let user = world.database.insert_user("ann").await?;
    let (id, key) = world.database.insert_user_key(user, "k", &["models"], &[world.project]).await?;
    let refused = (403, "invalid_request_error".to_owned(), json!("project_not_granted"));
    let told = async |key: &ApiKey, project: &str| {
        let request = edge.bare(Method::GET, "/v1/models").bearer_auth(key.secret().expose());
        let answer = request.header("x-ragmux-project", project).send().await.unwrap();
        if answer.status() == 200 { None } else { Some(answer.text().await.unwrap()) }
    };
    let id_of = |project: domain::ProjectId| project.to_string();
    assert_eq!(told(&key, "shop").await, None);
    assert_eq!(told(&world.key, &id_of(world.project)).await, None, "a project's key may name it");
    // Not granted, unknown, and of no shape: one text for all.
    let text = told(&key, "other").await.unwrap();
    for project in [id_of(other), "9999999".to_owned(), "nowhere".to_owned(), "99999999999999999999".to_owned()] {
        assert_eq!(told(&key, &project).await.as_ref(), Some(&text), "{project}");
        assert_eq!(told(&world.key, &project).await.as_ref(), Some(&text), "{project}");
    }
    world.database.remove_grant(id, world.project).await?;
    until("nothing is granted", async || Ok(models_with(&edge, &key).await == refused)).await?;
    edge.stop().await
}

#[tokio::test]
async fn a_key_in_the_wrong_place_is_not_shown_again() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.database.change_project(world.project, "strict_models = true").await?;
    let edge = world.edge().await?;
    let key = ApiKey::generate(KeyKind::Gateway);
    let key = key.secret().expose();
    let answers = [
        edge.get(&format!("/v1/{key}")).send().await?,
        edge.get(&format!("/v1/models/{key}")).send().await?,
        edge.get(&format!("/v1/usage/{key}")).send().await?,
        edge.get("/v1/models").header("x-ragmux-project", key).send().await?,
        edge.chat(json!({ "model": key })).send().await?,
        edge.chat(json!({ "messages": key })).send().await?,
        edge.bare(Method::GET, "/v1/models").bearer_auth(key).send().await?,
    ];
    for answer in answers {
        assert!(!answer.status().is_success());
        let headers = format!("{:?}", answer.headers());
        let text = answer.text().await?;
        assert!(!text.contains(key) && !headers.contains(key), "{headers} {text}");
    }
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
