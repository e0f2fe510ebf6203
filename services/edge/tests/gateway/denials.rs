//! Denials: what is told, what is remembered, and what is left of them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use domain::{ApiKey, ApiKeyId};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use testkit::{DEADLINE, early_in_a_minute, until};
use upstream::{Behaviour, Figures, Wait};

use crate::passages;
use crate::world::{CHAT, Edge, Path, World, body_of, error_of, header, turn};

/// More calls at once than any test makes.
const MANY: i64 = 1000;

/// A cap and what is told of it.
struct Cap {
    column: &'static str,
    code: &'static str,
    /// What of it is used, as the ledger names it.
    used: Option<&'static str>,
    /// The longest that a client may be told to wait, in seconds.
    wait: i64,
    resets: Option<&'static str>,
    headers: &'static [&'static str],
}

const CAPS: [Cap; 7] = [
    Cap {
        column: "tokens_per_month",
        code: "budget_monthly",
        used: Some("month_tokens"),
        wait: 31 * 86_400,
        resets: Some("-01T00:00:00Z"),
        headers: &["x-ragmux-budget-monthly-remaining"],
    },
    Cap {
        column: "cost_per_month",
        code: "cost_monthly",
        used: Some("month_cost"),
        wait: 31 * 86_400,
        resets: Some("-01T00:00:00Z"),
        headers: &["x-ragmux-cost-budget-monthly-remaining"],
    },
    Cap {
        column: "tokens_per_day",
        code: "budget_daily",
        used: Some("day_tokens"),
        wait: 86_400,
        resets: Some("T00:00:00Z"),
        headers: &["x-ragmux-budget-daily-remaining"],
    },
    Cap {
        column: "cost_per_day",
        code: "cost_daily",
        used: Some("day_cost"),
        wait: 86_400,
        resets: Some("T00:00:00Z"),
        headers: &["x-ragmux-cost-budget-daily-remaining"],
    },
    Cap {
        column: "tokens_per_minute",
        code: "rate_limit_tpm",
        used: Some("minute_tokens"),
        wait: 60,
        resets: Some(":00Z"),
        headers: &["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    },
    Cap {
        column: "requests_per_minute",
        code: "rate_limit_rpm",
        used: Some("minute_requests"),
        wait: 60,
        resets: Some(":00Z"),
        headers: &["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    },
    Cap { column: "concurrent_requests", code: "concurrency_limit", used: None, wait: 1, resets: None, headers: &[] },
];

/// A call of each billable route, and the model it is of.
fn calls() -> [(&'static str, Value, &'static str); 4] {
    [
        (CHAT, turn(json!({})), "real-chat"),
        (CHAT, turn(json!({ "stream": true })), "real-chat"),
        ("/v1/embeddings", json!({ "model": "vectors", "input": "the red door" }), "demo-embed"),
        ("/v1/retrieve", json!({ "query": "How long does the warranty last?" }), "demo-embed"),
    ]
}

/// One tier under test: the key that meets its caps, and the denials that clients were told of it.
struct Tier<'a> {
    world: &'a World,
    edge: &'a Edge,
    key: &'a ApiKey,
    number: i16,
    id: i64,
    told: BTreeMap<(i16, i64, String), i64>,
}

impl Tier<'_> {
    async fn limit(&self, set: &str) -> anyhow::Result<()> {
        if self.number == 1 {
            self.world.database.change_project(self.world.project, set).await
        } else {
            self.world.database.change_key(ApiKeyId(self.id), set).await
        }
    }

    async fn call(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        Ok(self.edge.bare(Method::POST, path).bearer_auth(self.key.secret().expose()).json(body).send().await?)
    }

    async fn denied(&mut self, answer: Response) -> Value {
        let body = body_of(answer, 429).await;
        let code = body["error"]["code"].as_str().unwrap().to_owned();
        *self.told.entry((self.number, self.id, code)).or_default() += 1;
        body["error"].clone()
    }

    /// A call that is admitted, once what was denied before is forgotten, and settled.
    async fn served(&mut self) -> anyhow::Result<()> {
        let (path, body, _) = &calls()[2];
        let deadline = Instant::now() + DEADLINE;
        loop {
            let answer = self.call(path, body).await?;
            if answer.status() == 200 {
                break;
            }
            self.denied(answer).await;
            anyhow::ensure!(Instant::now() < deadline, "still denied");
            tokio::task::yield_now().await;
        }
        until("it is settled", async || Ok(self.world.database.open_ids(self.world.project).await?.is_empty())).await
    }

    async fn used(&self, amount: &str) -> anyhow::Result<i64> {
        let rows = self.world.database.tier_rows().await?;
        let row = rows.iter().find(|row| row["tier"] == self.number && row["id"] == self.id).unwrap();
        Ok(["used", "excess"].iter().map(|part| row[format!("{amount}_{part}")].as_i64().unwrap_or(0)).sum())
    }

    /// Sets a cap that has next to nothing left, and calls each route.
    async fn meets(&mut self, cap: &Cap) -> anyhow::Result<()> {
        early_in_a_minute().await?;
        self.served().await?;
        // One more than is used: no call fits, but a smaller one would, so each is measured anew. Of requests there is
        // no smaller one.
        let used = match cap.used {
            Some(amount) => self.used(amount).await?,
            None => 0,
        };
        let size = if cap.code == "rate_limit_rpm" { used } else { used + 1 };
        self.limit(&format!("{} = {size}", cap.column)).await?;
        let is_concurrency = cap.code == "concurrency_limit";
        let running = is_concurrency.then(|| {
            self.world.next_chat(Behaviour { hold: true, ..Behaviour::default() });
            let chat = self.edge.bare(Method::POST, CHAT).bearer_auth(self.key.secret().expose());
            tokio::spawn(chat.json(&turn(json!({}))).send())
        });
        if is_concurrency {
            self.world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
        }
        let before = self.traces().await?;
        for (path, body, model) in calls() {
            let answer = self.call(path, &body).await?;
            let what = format!("{} on {path}", cap.code);
            assert_eq!(header(&answer, "content-type"), Some("application/json"), "{what}");
            assert_eq!(header(&answer, "x-ragmux-model"), Some(model), "{what}");
            let wait: i64 = header(&answer, "retry-after").unwrap().parse()?;
            assert!((1..=cap.wait).contains(&wait), "{what}: {wait}");
            let is_quota = cap.code.starts_with("budget_") || cap.code.starts_with("cost_");
            assert_eq!(header(&answer, "x-should-retry"), is_quota.then_some("false"), "{what}");
            let is_of_limits = |name: &&str| name.starts_with("x-ratelimit-") || name.contains("-budget-");
            let mut names: Vec<_> = answer.headers().keys().map(|name| name.as_str()).filter(is_of_limits).collect();
            names.sort_unstable();
            assert_eq!(names, cap.headers, "{what}");
            for name in names {
                let value = header(&answer, name).unwrap();
                let fits = match name {
                    "x-ratelimit-limit-tokens" | "x-ratelimit-limit-requests" => value == size.to_string(),
                    "x-ratelimit-remaining-requests" => value == "0",
                    "x-ratelimit-reset-tokens" | "x-ratelimit-reset-requests" => value.ends_with('s'),
                    _ if name.starts_with("x-ragmux-cost-") => value == "0.000000001",
                    _ => value == "1",
                };
                assert!(fits, "{what}: {name}: {value}");
            }
            let error = self.denied(answer).await;
            assert_eq!(error["type"], if is_quota { "insufficient_quota" } else { "rate_limit_exceeded" }, "{what}");
            assert_eq!(error["code"], cap.code, "{what}");
            assert_eq!(error["scope"], if self.number == 1 { "project" } else { "key" }, "{what}");
            let unit = if cap.code.starts_with("cost_") { 1e-9 } else { 1.0 };
            let amounts = ["cap", "used", "held"].map(|name| (error[name].as_f64().unwrap() / unit).round() as i64);
            assert_eq!(amounts, [size, used, i64::from(is_concurrency)], "{what}");
            match cap.resets {
                Some(end) => assert!(error["resets_at"].as_str().unwrap().ends_with(end), "{what}: {error}"),
                None => assert!(error["resets_at"].is_null(), "{what}: {error}"),
            }
        }
        assert_eq!(self.traces().await?, before, "{}", cap.code);
        self.limit(&format!("{} = {}", cap.column, if is_concurrency { MANY } else { 0 })).await?;
        if let Some(running) = running {
            self.world.upstream.release(None);
            assert_eq!(running.await??.status(), 200);
        }
        Ok(())
    }

    /// Everything that a call could leave in the ledger.
    async fn traces(&self) -> anyhow::Result<(Vec<Value>, Vec<String>, usize)> {
        let database = &self.world.database;
        let project = self.world.project;
        // Not even a hold that is taken back at once: how often a row was written is part of it.
        Ok((
            database.tier_rows().await?,
            database.open_ids(project).await?,
            database.logged_calls(project).await?.len(),
        ))
    }
}

#[tokio::test]
async fn every_denial_says_what_is_spent_and_leaves_nothing_but_a_count() -> anyhow::Result<()> {
    let (world, _) = passages::world().await?;
    let embed = world.database.insert_connection("vectors", &world.upstream.base_url(), "demo-embed").await?;
    world.database.insert_route(world.project, "vectors", embed).await?;
    for model in ["real-chat", "demo-embed"] {
        world.database.insert_price(model, 1_000_000_000, 1_000_000_000).await?;
    }
    // Never without a limit: a call that nothing limits does not wait for its admission.
    world.database.change_project(world.project, &format!("concurrent_requests = {MANY}")).await?;
    let user = world.database.insert_user("ann").await?;
    let scopes = ["chat", "embeddings", "retrieve"];
    let (id, key) = world.database.insert_user_key(user, "k", &scopes, &[world.project]).await?;
    let edge = world.edge().await?;
    let tier = |number, id, key| Tier { world: &world, edge: &edge, key, number, id, told: BTreeMap::new() };
    let mut told = BTreeMap::new();
    for mut tier in [tier(1, world.project.0, &world.key), tier(2, id.0, &key)] {
        for cap in &CAPS {
            tier.meets(cap).await?;
        }
        assert_eq!(tier.told.len(), CAPS.len());
        told.append(&mut tier.told);
    }
    edge.stop().await?;
    // The end of an edge writes what is not yet written.
    let counted = world.database.denial_counts().await?;
    let told: Vec<_> = told.into_iter().map(|((tier, id, code), denials)| (tier, id, code, denials)).collect();
    assert_eq!(counted, told);
    Ok(())
}

#[tokio::test]
async fn a_cap_that_is_used_up_denies_without_the_database_for_a_moment() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 500").await?;
    let way = Path::to(&world.database).await?;
    let edge = Edge::start(&way.url, world.key.secret().expose(), &[("DB_ACQUIRE_TIMEOUT", "500ms")]).await?;
    edge.until_ready().await?;
    let figures = Figures { prompt_tokens: 12, completion_tokens: 488, ..Figures::default() };
    world.next_chat(Behaviour { figures: Some(figures), ..Behaviour::default() });
    assert_eq!(edge.chat(json!({ "max_tokens": 460 })).send().await?.status(), 200);
    world.the_logged_call().await?;
    let denials = AtomicI64::new(0);
    until("a denial while the database is away", async || {
        way.block(false);
        let asked = edge.chat(json!({})).send().await?;
        if asked.status() != 429 {
            return Ok(false);
        }
        denials.fetch_add(1, Relaxed);
        let of_ledger = |answer: &Response| {
            ["x-ragmux-budget-daily-remaining", "x-ragmux-model", "x-should-retry"]
                .map(|name| header(answer, name).unwrap().to_owned())
        };
        let headers = of_ledger(&asked);
        let first = body_of(asked, 429).await;
        way.block(true);
        let recalled = edge.chat(json!({ "stream": true })).send().await?;
        if recalled.status() != 429 {
            return Ok(false);
        }
        denials.fetch_add(1, Relaxed);
        assert_eq!(of_ledger(&recalled), headers);
        assert!((1..=86_400).contains(&header(&recalled, "retry-after").unwrap().parse::<i64>()?));
        let second = body_of(recalled, 429).await;
        for member in ["type", "code", "scope", "cap", "used", "held", "resets_at"] {
            assert_eq!(second["error"][member], first["error"][member], "{member}");
        }
        Ok(true)
    })
    .await?;
    way.block(false);
    // More room, and it is had.
    world.database.change_project(world.project, "tokens_per_day = 5000").await?;
    until("calls are served", async || {
        let status = edge.chat(json!({})).send().await?.status();
        denials.fetch_add(i64::from(status == 429), Relaxed);
        Ok(status == 200)
    })
    .await?;
    edge.stop().await?;
    let counted = world.database.denial_counts().await?;
    assert_eq!(counted, [(1, world.project.0, "budget_daily".to_owned(), denials.into_inner())]);
    Ok(())
}

#[tokio::test]
async fn a_denial_for_calls_in_flight_ends_with_them() -> anyhow::Result<()> {
    let world = World::with("tokens_per_day = 500, concurrent_requests = 2").await?;
    let edge = world.edge().await?;
    let figures = Figures { prompt_tokens: 12, completion_tokens: 8, ..Figures::default() };
    world.next_chat(Behaviour { hold: true, figures: Some(figures), ..Behaviour::default() });
    let running = tokio::spawn(edge.chat(json!({ "max_tokens": 480 })).send());
    world.upstream_until(Wait { held: Some(1), ..Wait::default() }).await?;
    let (status, _, code) = error_of(edge.chat(json!({ "max_tokens": 100 })).send().await?).await;
    assert_eq!((status, code), (429, json!("budget_daily")));
    world.upstream.release(None);
    assert_eq!(running.await??.status(), 200);
    world.the_logged_call().await?;
    // The very next call is admitted.
    assert_eq!(edge.chat(json!({ "max_tokens": 100 })).send().await?.status(), 200);
    edge.stop().await
}

#[tokio::test]
async fn a_key_that_admission_refuses_is_counted_and_leaves_nothing_else() -> anyhow::Result<()> {
    let world = World::with("requests_per_minute = 100").await?;
    let edge = world.edge().await?;
    assert_eq!(edge.chat(json!({})).send().await?.status(), 200);
    world.the_logged_call().await?;
    let rows = world.database.tier_rows().await?;
    // Not announced: only the ledger knows.
    world.database.execute("UPDATE api_keys SET revoked_at = clock_timestamp()").await?;
    let (status, _, code) = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!((status, code), (401, json!("key_revoked")));
    // From here on it is known, and is no matter of admission.
    let (status, _, code) = error_of(edge.chat(json!({})).send().await?).await;
    assert_eq!((status, code), (401, json!("key_revoked")));
    assert_eq!((world.database.tier_rows().await?, world.logged(1).await?.len()), (rows, 1));
    edge.stop().await?;
    assert_eq!(world.database.denial_counts().await?, [(2, world.key_id.0, "key_revoked".to_owned(), 1)]);
    Ok(())
}
