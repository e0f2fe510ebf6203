//! Calls that run when their key may not go on.

use std::time::Duration;

use domain::{ApiKey, ApiKeyId, KeyKind, ProjectId, UserId};
use reqwest::Response;
use serde_json::{Value, json};
use testkit::{LoggedCall, eventually, until};
use upstream::{Behaviour, Wait};

use crate::stream::{content, events};
use crate::world::{CHAT, Edge, Path, World, answer_tokens, body_of, error_of, turn, turn_tokens};

const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A person's key, and an edge that hears of its changes by notification or not at all.
struct Scene {
    world: World,
    edge: Edge,
    user: UserId,
    key_id: ApiKeyId,
    key: ApiKey,
}

impl Scene {
    async fn new() -> anyhow::Result<Self> {
        let world = World::new().await?;
        let edge = world.edge_tuned(&[], |settings| settings.config_poll = NEVER).await?;
        Self::of(world, edge).await
    }

    async fn of(world: World, edge: Edge) -> anyhow::Result<Self> {
        let user = world.database.insert_user("ann").await?;
        let scopes = ["chat", "embeddings", "models", "retrieve"];
        let (key_id, key) = world.database.insert_user_key(user, "k", &scopes, &[world.project]).await?;
        Ok(Self { world, edge, user, key_id, key })
    }

    /// A stream that stands still after its first events, which the client has.
    async fn stream(&self) -> anyhow::Result<(Response, String)> {
        self.stream_with(&self.key).await
    }

    async fn stream_with(&self, key: &ApiKey) -> anyhow::Result<(Response, String)> {
        self.world.next_chat(Behaviour {
            content: Some("w ".to_owned()),
            chunks: Some(6),
            hold_after_events: Some(3),
            ..Behaviour::default()
        });
        let request = self.edge.bare(reqwest::Method::POST, CHAT).bearer_auth(key.secret().expose());
        let mut answer = request.json(&turn(json!({ "stream": true }))).send().await?;
        assert_eq!(answer.status(), 200);
        let mut read = String::new();
        while read.matches("\n\n").count() < 3 {
            let chunk = tokio::time::timeout(testkit::DEADLINE, answer.chunk()).await??;
            read.push_str(std::str::from_utf8(&chunk.unwrap())?);
        }
        Ok((answer, read))
    }

    async fn call(&self, path: &str, body: Value) -> anyhow::Result<Response> {
        let request = self.edge.bare(reqwest::Method::POST, path).bearer_auth(self.key.secret().expose());
        Ok(request.json(&body).send().await?)
    }

    /// The log's row of the call that ended last.
    async fn last_logged(&self, calls: usize) -> anyhow::Result<LoggedCall> {
        let logged = self.world.logged(calls).await?;
        assert_eq!(logged.len(), calls);
        Ok(logged[calls - 1].clone())
    }
}

/// The rest of a stream that breaks off: its whole text until then, and the error it ended with.
async fn broken_off((answer, read): (Response, String)) -> anyhow::Result<(String, Value)> {
    let rest = tokio::time::timeout(testkit::DEADLINE, answer.text()).await??;
    let (mut events, done) = events(&format!("{read}{rest}"));
    assert!(!done);
    let error = events.pop().unwrap();
    Ok((content(&events), error["error"].clone()))
}

#[tokio::test]
async fn a_stream_is_ended_in_the_protocol_when_its_key_may_not_go_on() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let Scene { world, user, key_id, .. } = &scene;
    let database = &world.database;
    let renew = async || {
        database.change_user(*user, "active = true").await?;
        database.change_key(*key_id, "revoked_at = NULL, expires_at = NULL").await?;
        until("the key works", async || {
            let answer = scene.edge.bare(reqwest::Method::GET, "/v1/models");
            Ok(answer.bearer_auth(scene.key.secret().expose()).send().await?.status() == 200)
        })
        .await
    };
    let cases = [
        ("key_revoked", "revoked_at = clock_timestamp()", 401),
        ("key_expired", "expires_at = clock_timestamp()", 401),
        // Nothing is to be heard at the moment it ends.
        ("key_expired", "expires_at = clock_timestamp() + interval '2 s'", 401),
        ("key_revoked", "revoked_at = clock_timestamp(), expires_at = clock_timestamp()", 401),
        ("key_owner_inactive", "", 401),
        ("project_not_granted", "", 403),
    ];
    for (number, limits) in ["tokens_per_day = 0", "tokens_per_day = 1000000"].into_iter().enumerate() {
        database.change_key(*key_id, limits).await?;
        for (place, (code, set, status)) in cases.iter().enumerate().take(if number == 0 { 6 } else { 5 }) {
            renew().await?;
            let stream = scene.stream().await?;
            match *code {
                "key_owner_inactive" => database.change_user(*user, "active = false").await?,
                "project_not_granted" => database.remove_grant(*key_id, world.project).await?,
                _ => database.change_key(*key_id, set).await?,
            }
            let (text, error) = broken_off(stream).await?;
            assert_eq!((error["code"].as_str(), text.as_str()), (Some(*code), "w w "), "{set}");
            let logged = scene.last_logged(1 + place + number * cases.len()).await?;
            assert_eq!((logged.status, logged.error_code.as_deref()), (*status, Some(*code)));
            assert_eq!((logged.state.as_str(), logged.charged_requests, logged.streamed), ("estimated", 1, true));
            assert_eq!(logged.charged_tokens, turn_tokens() + answer_tokens(&text));
        }
        if number == 0 {
            database.add_grant(*key_id, world.project).await?;
        }
    }
    world.upstream_until(Wait { aborted: Some(11), open: Some(0), ..Wait::default() }).await?;
    let totals = database.tier_totals(world.project).await?;
    assert_eq!((totals.open_calls, totals.open_rows, totals.day_tokens_held), (0, 0, 0));
    scene.edge.stop().await
}

#[tokio::test]
async fn a_stream_ends_when_its_key_loses_the_scope_or_route_it_stands_on() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let Scene { world, user, .. } = &scene;
    let database = &world.database;
    let cases = [
        ("scopes = '{chat}'", "scopes = '{models,retrieve}'", 403, "insufficient_scope"),
        ("allowed_routes = '{slow,fast}'", "allowed_routes = '{slow}'", 404, "model_not_found"),
        ("scopes = '{chat,models}', allowed_routes = NULL", "allowed_routes = '{}'", 404, "model_not_found"),
    ];
    for (number, (keeps, loses, status, code)) in (0..).zip(cases) {
        let new = async |name: &str| {
            database.insert_user_key(*user, &format!("{name}{number}"), &["chat", "embeddings"], &[world.project]).await
        };
        let ((id, key), (other_id, other)) = (new("k").await?, new("o").await?);
        let (stream, others) = (scene.stream_with(&key).await?, scene.stream_with(&other).await?);
        database.change_key(id, keeps).await?;
        // That this one has ended tells that the edge has looked at the other.
        database.change_key(other_id, "revoked_at = clock_timestamp()").await?;
        assert_eq!(broken_off(others).await?.1["code"], "key_revoked");
        let aborted = 2 * number + 1;
        world.upstream_until(Wait { aborted: Some(aborted), ..Wait::default() }).await?;
        assert_eq!(world.upstream.counters().aborted, aborted, "{keeps}: it goes on");
        database.change_key(id, loses).await?;
        let (text, error) = broken_off(stream).await?;
        assert_eq!((error["code"].as_str(), text.as_str()), (Some(code), "w w "), "{loses}");
        let again = scene.edge.bare(reqwest::Method::POST, CHAT).bearer_auth(key.secret().expose());
        let (told, _, told_code) = error_of(again.json(&turn(json!({}))).send().await?).await;
        assert_eq!((told, told_code), (status, json!(code)), "{loses}");
        let logged = world.logged(2 * (usize::try_from(number)? + 1)).await?;
        let logged =
            logged.iter().find(|call| call.error_code.as_deref() == Some(code) && call.status == i32::from(status));
        let logged = logged.unwrap();
        assert_eq!((logged.charged_requests, logged.charged_tokens), (1, turn_tokens() + answer_tokens(&text)));
    }
    world.upstream_until(Wait { open: Some(0), ..Wait::default() }).await?;
    scene.edge.stop().await
}

#[tokio::test]
async fn a_key_that_ends_by_itself_takes_its_streams_with_it() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    // Known when the call begins, not heard of while it runs.
    scene.world.database.change_key(scene.key_id, "expires_at = clock_timestamp() + interval '3 s'").await?;
    let (_, error) = broken_off(scene.stream().await?).await?;
    assert_eq!(error["code"], "key_expired");
    assert_eq!(error_of(scene.call(CHAT, turn(json!({}))).await?).await.2, "key_expired");
    // The call that was refused has no row.
    assert_eq!(scene.last_logged(1).await?.status, 401);
    scene.edge.stop().await
}

#[tokio::test]
async fn a_key_whose_end_is_put_off_in_time_goes_on() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let database = &scene.world.database;
    database.change_key(scene.key_id, "expires_at = clock_timestamp() + interval '3 s'").await?;
    let (answer, read) = scene.stream().await?;
    database.change_key(scene.key_id, "expires_at = clock_timestamp() + interval '1 h'").await?;
    // Another key ends in the meantime, after the first would have.
    let (other_id, other) = database.insert_user_key(scene.user, "o", &["chat"], &[scene.world.project]).await?;
    database.change_key(other_id, "expires_at = clock_timestamp() + interval '3500 ms'").await?;
    let (_, error) = broken_off(scene.stream_with(&other).await?).await?;
    assert_eq!(error["code"], "key_expired");
    scene.world.upstream.release(None);
    let (chunks, done) = events(&format!("{read}{}", answer.text().await?));
    assert_eq!((content(&chunks), done), ("w ".repeat(6), true));
    scene.edge.stop().await
}

#[tokio::test]
async fn rotation_ends_no_stream_and_revocation_ends_those_of_every_secret() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let database = &scene.world.database;
    let first = scene.stream().await?;
    let second_key = database.rotate_key(scene.key_id, KeyKind::Gateway, 1).await?;
    let gone = async || Ok(scene.call(CHAT, turn(json!({}))).await?.status() == 401);
    until("the old secret is unknown", gone).await?;
    let second = scene.stream_with(&second_key).await?;
    let third_key = database.rotate_key(scene.key_id, KeyKind::Gateway, 0).await?;
    let third = scene.stream_with(&third_key).await?;
    // A stream of another key tells that the edge has seen all that.
    let (other_id, other) = database.insert_user_key(scene.user, "o", &["chat"], &[scene.world.project]).await?;
    let others = scene.stream_with(&other).await?;
    database.change_key(other_id, "revoked_at = clock_timestamp()").await?;
    assert_eq!(broken_off(others).await?.1["code"], "key_revoked");
    assert_eq!(scene.world.upstream.counters().aborted, 1, "the others go on");
    database.change_key(scene.key_id, "revoked_at = clock_timestamp()").await?;
    for stream in [first, second, third] {
        assert_eq!(broken_off(stream).await?.1["code"], "key_revoked");
    }
    scene.edge.stop().await
}

#[tokio::test]
async fn a_project_that_rotates_its_key_breaks_no_stream() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let Scene { world, .. } = &scene;
    let (answer, read) = scene.stream_with(&world.key).await?;
    let next = world.database.rotate_key(world.key_id, KeyKind::Project, 0).await?;
    let with =
        |key: &ApiKey| scene.edge.bare(reqwest::Method::GET, "/v1/models").bearer_auth(key.secret().expose()).send();
    until("the old key is unknown", async || Ok(with(&world.key).await?.status() == 401)).await?;
    assert_eq!(with(&next).await?.status(), 200);
    world.upstream.release(None);
    let (chunks, done) = events(&format!("{read}{}", answer.text().await?));
    assert_eq!((content(&chunks), done), ("w ".repeat(6), true));
    scene.edge.stop().await
}

#[tokio::test]
async fn calls_without_a_status_yet_are_told_with_one() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let held = Behaviour { hold: true, ..Behaviour::default() };
    scene.world.every_chat(held.clone());
    let embeddings = "/v1/embeddings".to_owned();
    scene.world.upstream.script(upstream::Script {
        path: embeddings.clone(),
        default: Some(held),
        ..Default::default()
    });
    let whole = scene.call(CHAT, turn(json!({})));
    let streamed = scene.call(CHAT, turn(json!({ "stream": true })));
    let embedded = scene.call(&embeddings, json!({ "model": "fast", "input": "moon" }));
    let revoked = async {
        scene.world.upstream_until(Wait { held: Some(3), ..Wait::default() }).await?;
        scene.world.database.change_key(scene.key_id, "revoked_at = clock_timestamp()").await
    };
    let (whole, streamed, embedded, revoked) = tokio::join!(whole, streamed, embedded, revoked);
    revoked?;
    for answer in [whole?, streamed?, embedded?] {
        assert_eq!(error_of(answer).await, (401, "invalid_api_key".to_owned(), json!("key_revoked")));
    }
    for logged in scene.world.logged(3).await? {
        assert_eq!((logged.status, logged.error_code.as_deref()), (401, Some("key_revoked")));
        assert_eq!((logged.charged_requests, logged.state.as_str()), (1, "estimated"));
        assert!(logged.charged_tokens > 0, "the provider may bill the prompt: {logged:?}");
    }
    scene.edge.stop().await
}

#[tokio::test]
async fn a_stream_that_was_begun_before_the_provider_spoke_is_ended_as_one() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge_with(&[("STREAM_COMMIT_AFTER", "1ms")]).await?;
    let scene = Scene::of(world, edge).await?;
    scene.world.every_chat(Behaviour { hold: true, ..Behaviour::default() });
    let answer = scene.call(CHAT, turn(json!({ "stream": true }))).await?;
    assert_eq!(answer.status(), 200);
    scene.world.database.change_key(scene.key_id, "revoked_at = clock_timestamp()").await?;
    let (text, error) = broken_off((answer, String::new())).await?;
    assert_eq!((error["code"].as_str(), text.as_str()), (Some("key_revoked"), ""));
    let logged = scene.last_logged(1).await?;
    assert_eq!((logged.status, logged.charged_tokens), (401, turn_tokens()));
    scene.edge.stop().await
}

#[tokio::test]
async fn without_notifications_changes_are_looked_for() -> anyhow::Result<()> {
    let world = World::new().await?;
    let settings = [("DB_POOLER", "transaction")];
    let edge = world.edge_tuned(&settings, |settings| settings.config_poll = Duration::from_millis(100)).await?;
    let scene = Scene::of(world, edge).await?;
    let stream = scene.stream().await?;
    assert_eq!(scene.world.database.listening_sessions(store::Topic::Config).await?, 0);
    scene.world.database.change_key(scene.key_id, "revoked_at = clock_timestamp()").await?;
    assert_eq!(broken_off(stream).await?.1["code"], "key_revoked");
    assert_eq!(error_of(scene.call(CHAT, turn(json!({}))).await?).await.2, "key_revoked");
    scene.edge.stop().await
}

#[tokio::test]
async fn while_the_database_is_away_streams_go_on_and_what_was_missed_is_made_up_for() -> anyhow::Result<()> {
    let world = World::new().await?;
    let path = Path::to(&world.database).await?;
    let edge = Edge::start(&path.url, world.key.secret().expose(), &[("DB_ACQUIRE_TIMEOUT", "500ms")]).await?;
    edge.until_ready().await?;
    let scene = Scene::of(world, edge).await?;
    let database = &scene.world.database;
    // Its time is over while nobody can be asked.
    let (short_id, short) = database.insert_user_key(scene.user, "s", &["chat"], &[scene.world.project]).await?;
    database.change_key(short_id, "expires_at = clock_timestamp() + interval '4 s'").await?;
    let expiring = scene.stream_with(&short).await?;
    let revoked = scene.stream().await?;
    let kept = scene.stream_with(&scene.world.key).await?;
    path.block(true);
    database.change_key(scene.key_id, "revoked_at = clock_timestamp()").await?;
    eventually("the short key is over", async || {
        let found = database.store(testkit::RoleName::Edge)?.find_principal(&short.hash()).await?;
        Ok(found.filter(|found| found.expired))
    })
    .await?;
    assert_eq!(scene.world.upstream.counters().aborted, 0);
    path.block(false);
    assert_eq!(broken_off(revoked).await?.1["code"], "key_revoked");
    assert_eq!(broken_off(expiring).await?.1["code"], "key_expired");
    scene.world.upstream.release(None);
    let (chunks, done) = events(&format!("{}{}", kept.1, kept.0.text().await?));
    assert_eq!((content(&chunks), done), ("w ".repeat(6), true));
    scene.edge.stop().await
}

#[tokio::test]
async fn only_the_calls_of_the_project_that_was_taken_away_end() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let Scene { world, .. } = &scene;
    let second: ProjectId = world.database.insert_project("second", "").await?;
    world.database.insert_route(second, "fast", world.connection).await?;
    world.database.add_grant(scene.key_id, second).await?;
    let both = [world.project, second].map(|project| project.to_string());
    let mut calls = Vec::new();
    for project in &both {
        world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
        let request = scene.edge.bare(reqwest::Method::POST, CHAT).bearer_auth(scene.key.secret().expose());
        let request = request.header("x-ragmux-project", project).json(&turn(json!({})));
        calls.push(tokio::spawn(request.send()));
        world.upstream_until(Wait { held: Some(calls.len() as u64), ..Wait::default() }).await?;
    }
    world.database.remove_grant(scene.key_id, second).await?;
    let gone = calls.pop().unwrap().await??;
    assert_eq!(error_of(gone).await, (403, "invalid_request_error".to_owned(), json!("project_not_granted")));
    assert!(!calls[0].is_finished());
    world.upstream.release(None);
    body_of(calls.pop().unwrap().await??, 200).await;
    scene.edge.stop().await
}
