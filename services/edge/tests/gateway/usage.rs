//! What callers learn of their own usage.

use domain::{ApiKey, ApiKeyId, KeyKind};
use reqwest::Method;
use serde_json::{Value, json};
use testkit::until;
use upstream::{Behaviour, Figures, Script, Wait};

use crate::script::failing;
use crate::world::{Edge, Path, World, answer_tokens, body_of, error_of, header, turn, turn_tokens};

const USAGE: &str = "/v1/usage";

async fn usage(edge: &Edge) -> anyhow::Result<Value> {
    Ok(body_of(edge.get(USAGE).send().await?, 200).await)
}

/// A person's key that may only chat.
async fn persons_key(world: &World, name: &str) -> anyhow::Result<(ApiKeyId, ApiKey)> {
    let user = world.database.insert_user(name).await?;
    world.database.insert_user_key(user, "k", &["chat"], &[world.project]).await
}

fn figures(prompt_tokens: u64, completion_tokens: u64) -> Behaviour {
    let figures = Figures { prompt_tokens, completion_tokens, ..Figures::default() };
    Behaviour { figures: Some(figures), ..Behaviour::default() }
}

#[tokio::test]
async fn the_windows_of_project_and_key_are_shown_in_tokens_and_dollars() -> anyhow::Result<()> {
    let world =
        World::with("tokens_per_day = 100000, cost_per_month = 2500000000, time_zone = 'Europe/Berlin'").await?;
    // A dollar for a million tokens.
    world.database.insert_price("real-chat", 1_000_000_000, 1_000_000_000).await?;
    let (key_id, key) = persons_key(&world, "ann").await?;
    world.database.change_key(key_id, "requests_per_minute = 50").await?;
    let edge = world.edge().await?;
    world.next_chat(figures(900, 100));
    let answer = edge.bare(Method::POST, crate::world::CHAT).bearer_auth(key.secret().expose()).json(&turn(json!({})));
    assert_eq!(answer.send().await?.status(), 200);
    world.the_logged_call().await?;

    let body = usage(&edge).await?;
    assert_eq!((&body["object"], body["tiers"].as_array().unwrap().len()), (&json!("usage"), 1));
    let tier = &body["tiers"][0];
    assert_eq!(
        (&tier["scope"], &tier["name"], &tier["time_zone"]),
        (&json!("project"), &json!("shop"), &json!("Europe/Berlin"))
    );
    assert_eq!((&tier["open_calls"], &tier["concurrent_requests"]), (&json!(0), &json!(null)));
    let tokens = &tier["day"]["tokens"];
    let (used, excess) = (tokens["used"].as_i64().unwrap(), tokens["excess"].as_i64().unwrap());
    assert_eq!((used + excess, &tokens["held"], &tokens["limit"]), (1000, &json!(0), &json!(100_000)));
    assert_eq!(tokens["remaining"], 99_000);
    let cost = &tier["month"]["cost_usd"];
    assert_eq!((&cost["limit"], &cost["remaining"]), (&json!(2.5), &json!(2.499)));
    assert_eq!(tier["day"]["cost_usd"]["limit"], json!(null));
    assert_eq!(
        tier["minute"]["requests"],
        json!({ "limit": null, "used": 1, "excess": 0, "held": 0, "remaining": null })
    );
    for window in ["minute", "day", "month"] {
        let ends = tier[window]["ends_at"].as_str().unwrap();
        assert!(tier[window]["starts_at"].as_str().unwrap() < ends && ends.ends_with('Z'), "{}", tier[window]);
    }

    // The person's key sees its own windows too, whatever its scopes are.
    let mine = edge.bare(Method::GET, USAGE).bearer_auth(key.secret().expose()).send().await?;
    let mine = body_of(mine, 200).await;
    assert_eq!((&mine["tiers"][0]["scope"], &mine["tiers"][1]["scope"]), (&json!("project"), &json!("key")));
    assert_eq!(mine["tiers"][1]["minute"]["requests"]["limit"], 50);
    assert_eq!(mine["tiers"][1]["time_zone"], "UTC");
    edge.stop().await
}

#[tokio::test]
async fn one_call_is_shown_from_its_admission_to_its_settlement() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 100000").await?;
    world.database.insert_price("real-chat", 1_000_000_000, 2_000_000_000).await?;
    let edge = world.edge().await?;
    world.next_chat(Behaviour { hold: true, ..figures(900, 100) });
    let running = tokio::spawn(edge.chat(json!({ "user": "u-1", "max_tokens": 200 })).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let open = usage(&edge).await?;
    assert_eq!(
        (&open["tiers"][0]["open_calls"], &open["tiers"][0]["minute"]["requests"]["held"]),
        (&json!(1), &json!(1))
    );
    let id = world.database.open_ids(world.project).await?.remove(0);
    let of = async |id: &str| anyhow::Ok(body_of(edge.get(&format!("{USAGE}/{id}")).send().await?, 200).await);
    let call = of(&id).await?;
    assert_eq!((&call["state"], &call["status"], &call["charged"]), (&json!("open"), &json!(null), &json!(null)));
    assert_eq!(
        (&call["route"], &call["model"], &call["tags"]),
        (&json!("fast"), &json!("real-chat"), &json!({ "user": "u-1" }))
    );
    assert!(call["held"]["tokens"].as_i64().unwrap() > 200 && call["settled_at"].is_null());
    world.upstream.release(None);
    let answer = running.await??;
    assert_eq!(header(&answer, "x-request-id"), Some(id.as_str()));
    world.the_logged_call().await?;
    let call = of(&id).await?;
    assert_eq!((&call["id"], &call["state"], &call["status"]), (&json!(id), &json!("final"), &json!(200)));
    assert_eq!(
        (&call["reported"]["prompt_tokens"], &call["reported"]["completion_tokens"]),
        (&json!(900), &json!(100))
    );
    assert_eq!(call["charged"], json!({ "requests": 1, "tokens": 1000, "cost_usd": 0.0011 }));
    assert_eq!((&call["cost_source"], &call["attempts"], &call["held"]), (&json!("user"), &json!(1), &json!(null)));
    assert_eq!(of(&id.to_uppercase()).await?["id"], id);
    edge.stop().await
}

#[tokio::test]
async fn a_failed_call_is_shown_with_its_code() -> anyhow::Result<()> {
    let world = World::new().await?;
    let edge = world.edge().await?;
    world.every_chat(failing(400));
    let answer = edge.chat(json!({})).send().await?;
    let id = header(&answer, "x-request-id").unwrap().to_owned();
    let (status, _, code) = error_of(answer).await;
    world.the_logged_call().await?;
    let call = body_of(edge.get(&format!("{USAGE}/{id}")).send().await?, 200).await;
    assert_eq!((&call["status"], &call["error_code"]), (&json!(status), &code));
    assert_eq!(
        (&call["charged"]["requests"], &call["charged"]["tokens"], &call["reported"]),
        (&json!(1), &json!(0), &json!(null))
    );
    edge.stop().await
}

#[tokio::test]
async fn calls_of_others_and_ids_of_nothing_are_not_found_alike() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (_, anns) = persons_key(&world, "ann").await?;
    let (_, bobs) = persons_key(&world, "bob").await?;
    let elsewhere = world.database.insert_project("elsewhere", "").await?;
    let (_, others) = world.database.insert_project_key(elsewhere).await?;
    let edge = world.edge().await?;
    let with = |key: &ApiKey, method: Method, path: &str| edge.bare(method, path).bearer_auth(key.secret().expose());
    let answer = with(&anns, Method::POST, crate::world::CHAT).json(&turn(json!({}))).send().await?;
    let id = header(&answer, "x-request-id").unwrap().to_owned();
    assert_eq!(answer.status(), 200);
    world.the_logged_call().await?;

    let path = format!("{USAGE}/{id}");
    for key in [&anns, &world.key] {
        assert_eq!(with(key, Method::GET, &path).send().await?.status(), 200, "a project's key sees all its calls");
    }
    let mut told = Vec::new();
    for key in [&bobs, &others] {
        told.push(body_of(with(key, Method::GET, &path).send().await?, 404).await);
    }
    let unknown = domain::RequestId::new().to_string();
    for id in [unknown.as_str(), "00000000-0000-4000-8000-000000000000", "x", "a/b", "%27%3B", "%ff", &"9".repeat(300)]
    {
        told.push(body_of(edge.get(&format!("{USAGE}/{id}")).send().await?, 404).await);
    }
    for body in told {
        assert_eq!(body["error"]["code"], "call_not_found");
        assert_eq!(body["error"]["message"], "there is no such call of this project and key");
    }
    // A management key is for elsewhere, and none is none.
    assert_eq!(error_of(edge.bare(Method::GET, USAGE).send().await?).await.0, 401);
    assert_eq!(error_of(edge.bare(Method::GET, &path).send().await?).await.0, 401);
    edge.stop().await
}

#[tokio::test]
async fn a_database_that_is_away_is_said_to_be() -> anyhow::Result<()> {
    let world = World::new().await?;
    let way = Path::to(&world.database).await?;
    let edge = Edge::start(&way.url, world.key.secret().expose(), &[("DB_ACQUIRE_TIMEOUT", "500ms")]).await?;
    edge.until_ready().await?;
    usage(&edge).await?;
    way.block(true);
    for path in [USAGE.to_owned(), format!("{USAGE}/{}", domain::RequestId::new())] {
        let answer = edge.get(&path).send().await?;
        assert!(header(&answer, "retry-after").is_some());
        assert_eq!(error_of(answer).await, (503, "server_error".to_owned(), json!("unavailable")));
    }
    way.block(false);
    until("usage is shown again", async || Ok(edge.get(USAGE).send().await?.status() == 200)).await?;
    edge.stop().await
}

#[tokio::test]
async fn slow_reads_leave_connections_to_find_out_who_calls() -> anyhow::Result<()> {
    let world = World::new().await?;
    // Two are left for the pool.
    let edge = world.edge_with(&[("DB_MAX_CONNS", "8"), ("DB_ACQUIRE_TIMEOUT", "20s")]).await?;
    usage(&edge).await?;
    let lock = world.database.lock_table("request_logs").await?;
    let path = format!("{USAGE}/{}", domain::RequestId::new());
    let reads = [(); 4].map(|()| tokio::spawn(edge.get(&path).send()));
    until("a read waits", || async { world.database.has_lock_waiters().await }).await?;
    let stranger = ApiKey::generate(KeyKind::Project);
    let answer = edge.bare(Method::GET, USAGE).bearer_auth(stranger.secret().expose()).send().await?;
    assert_eq!(error_of(answer).await.0, 401);
    assert!(reads.iter().all(|read| !read.is_finished()));
    lock.release().await?;
    for read in reads {
        assert_eq!(error_of(read.await??).await.2, json!("call_not_found"));
    }
    edge.stop().await
}

#[tokio::test]
async fn usage_that_no_call_can_have_is_not_charged() -> anyhow::Result<()> {
    const ABSURD: u64 = 1_000_000_000_000_000;
    let world = World::new().await?;
    let connection = world.database.insert_connection("embed", &world.upstream.base_url(), "demo-embed").await?;
    world.database.insert_route(world.project, "vectors", connection).await?;
    let edge = world.edge().await?;
    let said = "a short answer";
    world.upstream.script(Script {
        path: "*".to_owned(),
        default: Some(Behaviour { content: Some(said.to_owned()), ..figures(ABSURD, ABSURD) }),
        ..Script::default()
    });
    let whole = body_of(edge.chat(json!({})).send().await?, 200).await;
    assert_eq!(whole["usage"]["prompt_tokens"], ABSURD, "the client gets what the provider said");
    edge.chat(json!({ "stream": true })).send().await?.text().await?;
    let input = "a text to embed";
    edge.post("/v1/embeddings", &json!({ "model": "vectors", "input": input })).send().await?.bytes().await?;
    let chat = turn_tokens() + answer_tokens(said);
    let mut charged = Vec::new();
    for call in world.logged(3).await? {
        assert_eq!((call.status, call.state.as_str(), call.completion_tokens), (200, "estimated", None), "{call:?}");
        charged.push(call.charged_tokens);
    }
    charged.sort_unstable();
    assert_eq!(charged, [answer_tokens(input), chat, chat]);
    edge.stop().await
}
