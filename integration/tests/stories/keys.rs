//! Keys that end: on every edge, with notifications and without, and nothing of any key in a log.

use std::time::{Duration, Instant};

use anyhow::Context;
use futures::future::try_join_all;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use testkit::{ApiKey, ApiKeyId, KeyKind, ProjectId, Role, Stack, UserId};
use tokio::time::timeout;
use upstream::{Behaviour, Script, Wait};

use crate::client;

const PATH: &str = "/v1/chat/completions";

/// The text of a stream that nobody ends.
const WHOLE: &str = "word word word word ";

/// The first two hear of changes, the others have to look.
const EDGES: usize = 4;
const HEARING: usize = 2;

/// How long an edge may take to act on a change. What is promised is a second for those that hear of it and five for
/// those that look; the rest is for a machine that is busy with other things.
fn bound(edge: usize) -> Duration {
    if edge < HEARING { Duration::from_secs(5) } else { Duration::from_secs(15) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Revoked,
    Expired,
    OwnerInactive,
    GrantRemoved,
    Rotated,
    Limited,
}

impl Change {
    const ALL: [Self; 6] =
        [Self::Revoked, Self::Expired, Self::OwnerInactive, Self::GrantRemoved, Self::Rotated, Self::Limited];

    /// What a new call is told.
    fn told(self) -> (u16, &'static str) {
        match self {
            Self::Revoked => (401, "key_revoked"),
            Self::Expired => (401, "key_expired"),
            Self::OwnerInactive => (401, "key_owner_inactive"),
            Self::GrantRemoved => (403, "project_not_granted"),
            Self::Rotated => (401, "invalid_api_key"),
            Self::Limited => (429, "budget_daily"),
        }
    }

    fn ends_streams(self) -> bool {
        !matches!(self, Self::Rotated | Self::Limited)
    }
}

/// A person with one key, and a stream of it on every edge that stands still after its second event.
struct Caller {
    change: Change,
    user: UserId,
    id: ApiKeyId,
    key: ApiKey,
    streams: Vec<Response>,
}

fn call(stack: &Stack, edge: usize, key: &ApiKey, body: &Value) -> anyhow::Result<RequestBuilder> {
    let url = format!("{}/chat/completions", stack.edge_url(edge)?);
    Ok(stack.http.post(url).bearer_auth(key.secret().expose()).json(body))
}

async fn apply(stack: &Stack, project: ProjectId, caller: &Caller) -> anyhow::Result<Option<ApiKey>> {
    let (database, id) = (&stack.database, caller.id);
    match caller.change {
        Change::Revoked => database.change_key(id, "revoked_at = clock_timestamp()").await?,
        Change::Expired => database.change_key(id, "expires_at = clock_timestamp()").await?,
        Change::OwnerInactive => database.change_user(caller.user, "active = false").await?,
        Change::GrantRemoved => database.remove_grant(id, project).await?,
        Change::Rotated => return Ok(Some(database.rotate_key(id, KeyKind::Gateway, 0).await?)),
        Change::Limited => database.change_key(id, "tokens_per_day = 1").await?,
    }
    Ok(None)
}

/// Waits until a call is told what it has to be; how long that took.
async fn refused(stack: &Stack, edge: usize, caller: &Caller, since: Instant) -> anyhow::Result<u128> {
    let (status, code) = caller.change.told();
    let what = format!("edge {edge} knows of {:?}", caller.change);
    let knows = testkit::until(&what, async || {
        let answer = call(stack, edge, &caller.key, &client::ask("again"))?.send().await?;
        if answer.status() == 200 {
            return Ok(false);
        }
        let (told, _, body) = client::read(answer, "retry-after").await?;
        assert_eq!((told.as_u16(), body["error"]["code"].as_str()), (status, Some(code)), "{:?}", caller.change);
        Ok(true)
    });
    timeout(bound(edge), knows).await.with_context(|| format!("not within {:?}: {what}", bound(edge)))??;
    Ok(since.elapsed().as_millis())
}

/// Reads a stream that has to break off; how long that took.
async fn broken_off(stream: Response, edge: usize, change: Change, since: Instant) -> anyhow::Result<u128> {
    let late = || format!("edge {edge} does not end a stream for {change:?} in {:?}", bound(edge));
    let text = timeout(bound(edge), stream.text()).await.with_context(late)??;
    let took = since.elapsed().as_millis();
    let last = text.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
    let last: Value = serde_json::from_str(last).map_err(|error| anyhow::anyhow!("{error}: {text}"))?;
    assert_eq!(last["error"]["code"].as_str(), Some(change.told().1), "{text}");
    Ok(took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_ends_stops_working_on_every_edge_and_no_log_has_anything_of_a_key() -> anyhow::Result<()> {
    let mut stack = Stack::builder().admins(0).edges(HEARING).set("LOG_LEVEL", "debug").start().await?;
    for _ in HEARING..EDGES {
        let edge = stack.spawn_with(Role::Edge, &[("DB_POOLER", "transaction")]).await?;
        let http = stack.http.clone();
        stack.process(edge)?.ready(&http).await?;
    }
    let database = &stack.database;
    let connection = database.insert_connection("c", &stack.upstream.base_url(), "demo-chat").await?;
    let project = database.insert_project("p", "").await?;
    database.insert_route(project, "chat", connection).await?;

    let mut callers = Vec::new();
    for change in Change::ALL {
        for limits in ["tokens_per_day = 0", "tokens_per_day = 1000000"] {
            let user = database.insert_user(&format!("{change:?} {limits}")).await?;
            let (id, key) = database.insert_user_key(user, "k", &["chat"], &[project]).await?;
            database.change_key(id, limits).await?;
            let held = Behaviour {
                content: Some("word ".to_owned()),
                chunks: Some(4),
                hold_after_events: Some(2),
                ..Behaviour::default()
            };
            stack.upstream.script(Script { path: PATH.to_owned(), queue: vec![held; EDGES], ..Script::default() });
            let open = async |edge: usize| {
                let answer = call(&stack, edge, &key, &client::ask_streamed("hello"))?.send().await?;
                assert_eq!(answer.status(), 200);
                anyhow::Ok(answer)
            };
            let streams = try_join_all((0..EDGES).map(open)).await?;
            callers.push(Caller { change, user, id, key, streams });
        }
    }

    let mut secrets = Vec::new();
    let mut going_on = Vec::new();
    for mut caller in callers {
        let streams = std::mem::take(&mut caller.streams);
        // Every edge knows it as good: what was heard of it before, of its making, made them forget it.
        for edge in 0..EDGES {
            assert_eq!(call(&stack, edge, &caller.key, &client::ask("again"))?.send().await?.status(), 200);
        }
        let since = Instant::now();
        let next = apply(&stack, project, &caller).await?;
        let refused = try_join_all((0..EDGES).map(|edge| refused(&stack, edge, &caller, since)));
        if caller.change.ends_streams() {
            let streams = (0..).zip(streams);
            let ended = try_join_all(streams.map(|(edge, stream)| broken_off(stream, edge, caller.change, since)));
            let (refused, ended) = tokio::try_join!(refused, ended)?;
            println!("keys: {:?} after {refused:?} ms, streams after {ended:?} ms", caller.change);
        } else {
            println!("keys: {:?} after {:?} ms", caller.change, refused.await?);
            going_on.extend(streams);
        }
        if let Some(next) = &next {
            let answer = call(&stack, 0, next, &client::ask("again"))?.send().await?;
            assert_eq!(answer.status(), 200);
        }
        secrets.extend([Some(caller.key), next].into_iter().flatten());
    }
    stack.upstream.release(None);
    for stream in going_on {
        assert_eq!(client::stream_text(&stream.text().await?), (WHOLE.to_owned(), true));
    }
    stack.upstream.wait(Wait { open: Some(0), ..Wait::default() }).await;
    testkit::until("all is settled", async || Ok(database.tier_totals(project).await?.open_rows == 0)).await?;

    let shown = everything_wrong(&stack, &mut secrets).await?;
    for key in &secrets {
        // The part that is secret; a provider sees none of it either.
        let secret = key.secret().expose().rsplit_once('-').unwrap().1;
        assert!(!shown.contains(secret), "an answer has it");
        for edge in 0..EDGES {
            let log = stack.nth(Role::Edge, edge)?.log();
            assert!(log.contains("calls of a key that may not go on are ended"), "{log}");
            assert!(!log.contains(secret), "the log of edge {edge} has it");
        }
        let seen = serde_json::to_string(&stack.upstream.log(0).calls)?;
        assert!(!seen.contains(secret), "the provider has seen it");
    }
    stack.shut_down().await
}

/// Sends keys in every wrong way to every edge; all that was answered.
async fn everything_wrong(stack: &Stack, secrets: &mut Vec<ApiKey>) -> anyhow::Result<String> {
    let mut shown = String::new();
    for edge in 0..EDGES {
        for kind in [KeyKind::Gateway, KeyKind::Project, KeyKind::Management] {
            let key = ApiKey::generate(kind);
            let text = key.secret().expose().to_owned();
            let base = stack.edge_url(edge)?;
            let good = |path: &str| stack.http.get(format!("{base}{path}"));
            let requests = [
                good("/models").bearer_auth(&text),
                good("/models").bearer_auth(format!("{text}x")),
                good("/models").header("x-api-key", format!("x{text}")),
                good(&format!("/{text}")),
                good(&format!("/models?key={text}")),
                good("/models").header("authorization", format!("Basic {text}")),
                good("/models").bearer_auth("none").header("x-ragmux-project", &text),
                stack.http.post(format!("{base}/chat/completions")).bearer_auth(&text).json(&json!({ "model": text })),
                stack.http.post(format!("{base}/{text}")).body(text.clone()),
            ];
            for request in requests {
                let answer = request.send().await?;
                assert!(answer.status().is_client_error());
                shown.push_str(&format!("{:?}", answer.headers()));
                shown.push_str(&answer.text().await?);
            }
            secrets.push(key);
        }
    }
    Ok(shown)
}
