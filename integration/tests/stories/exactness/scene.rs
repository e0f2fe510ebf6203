//! What the story is played on: a PostgreSQL of its own that keeps what it commits, three edges, one project and one key.

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use testkit::{
    ApiKeyId, InstanceId, LedgerWatch, Meter, PrivateServer, ProjectId, Role, RouteId, Stack, Tier, TierCap,
};
use tokio::time::timeout;
use upstream::{Script, Wait};

use super::bound::Bound;
use super::caller::{Call, Outcome, number_in};
use super::plan::{Caller, EDGES, Leave, Limit, Plan};
use super::tally::Tally;

const MODEL: &str = "demo-chat";
/// Nano-USD per million tokens.
const INPUT_PRICE: i64 = 150_000_000;
const OUTPUT_PRICE: i64 = 600_000_000;
const MILLION: i64 = 1_000_000;

pub(super) struct Scene {
    pub(super) stack: Stack,
    pub(super) server: PrivateServer,
    pub(super) watch: LedgerWatch,
    /// Processes that were killed.
    pub(super) killed: Vec<InstanceId>,
    /// Tokens that the prompt of every call counts as.
    prompt: i64,
    edges: Vec<usize>,
    project: ProjectId,
    key: ApiKeyId,
    secret: String,
    /// A route whose name tells which caps an edge has heard of.
    marker: RouteId,
    marks: usize,
    calls: i64,
}

impl Scene {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let server = PrivateServer::start_named("exactness").await?;
        let database = server.database().await?;
        let watch = database.watch_ledger().await?;
        let stack = Stack::builder()
            .admins(0)
            .edges(EDGES)
            .database(database)
            .set("LEDGER_ORPHAN_AFTER", "20s")
            .start()
            .await?;
        let database = &stack.database;
        let connection = database.insert_connection("provider", &stack.upstream.base_url(), MODEL).await?;
        database.insert_price(MODEL, INPUT_PRICE, OUTPUT_PRICE).await?;
        let project = database.insert_project("project", "time_zone = 'America/New_York'").await?;
        database.insert_route(project, "chat", connection).await?;
        let marker = database.insert_route(project, "marker", connection).await?;
        let user = database.insert_user("caller").await?;
        let (key, secret) = database.insert_user_key(user, "key", &["chat", "models"], &[project]).await?;
        database.change_key(key, "time_zone = 'Asia/Kathmandu'").await?;
        let mut scene = Self {
            secret: secret.secret().expose().to_owned(),
            edges: (0..EDGES).collect(),
            stack,
            server,
            watch,
            killed: Vec::new(),
            prompt: 0,
            project,
            key,
            marker,
            marks: 0,
            calls: 0,
        };
        for edge in 0..EDGES {
            scene.measure_prompt(edge).await?;
        }
        Ok(scene)
    }

    /// What a call holds beside its output bound, which must be the same at every edge.
    async fn measure_prompt(&mut self, edge: usize) -> anyhow::Result<()> {
        let call = self.call(Caller { edge, streamed: false, leave: Leave::Never }, 64)?;
        let number = call.number;
        let outcome = call.make(&self.stack.http).await;
        anyhow::ensure!(matches!(outcome, Outcome::Served(_)), "{outcome:?}");
        self.rest(&[number]).await?;
        let calls = self.watch.calls(&[number]).await?;
        let prompt = calls.first().context("the call is not known")?.held_tokens - 64;
        anyhow::ensure!(edge == 0 || prompt == self.prompt, "prompts of {prompt} and {} tokens", self.prompt);
        self.prompt = prompt;
        Ok(())
    }

    /// The next call.
    pub(super) fn call(&mut self, caller: Caller, output: i64) -> anyhow::Result<Call> {
        self.calls += 1;
        Ok(Call {
            number: self.calls,
            url: format!("{}/v1", self.stack.process(self.edges[caller.edge])?.url()),
            key: self.secret.clone(),
            output,
            streamed: caller.streamed,
            leave: caller.leave,
        })
    }

    /// What a call holds: tokens and nano-USD.
    pub(super) fn hold(&self, output: i64) -> (i64, i64) {
        (self.prompt + output, (self.prompt * INPUT_PRICE + output * OUTPUT_PRICE) / MILLION)
    }

    /// What is taken of a cap now.
    pub(super) async fn meter(&self, tier: Tier, cap: testkit::Cap) -> anyhow::Result<Meter> {
        let id = if tier == Tier::Project { self.project.0 } else { self.key.0 };
        self.watch.meter(tier, id, cap).await
    }

    /// What is taken of each.
    pub(super) async fn meters(&self, bounds: &[Bound]) -> anyhow::Result<Vec<Meter>> {
        let mut meters = Vec::with_capacity(bounds.len());
        for bound in bounds {
            meters.push(self.meter(bound.tier, bound.cap).await?);
        }
        Ok(meters)
    }

    /// Sets caps that leave this room, and waits until every edge has heard of them. The ledger is at rest.
    pub(super) async fn limit(&mut self, plan: &Plan, limits: &[Limit]) -> anyhow::Result<Vec<Bound>> {
        let (tokens, cost) = self.hold(plan.output);
        let (most_tokens, most_cost) = self.hold(plan.most_output());
        let mut bounds = Vec::new();
        for limit in limits {
            use testkit::Cap as C;
            let (each, most) = match limit.cap {
                C::RequestsPerMinute | C::ConcurrentRequests => (1, 1),
                C::TokensPerMinute | C::TokensPerDay | C::TokensPerMonth => (tokens, most_tokens),
                C::CostPerDay | C::CostPerMonth => (cost, most_cost),
            };
            let at_first = self.meter(limit.tier, limit.cap).await?;
            let room = limit.calls * each + limit.slack.of(each);
            // 0 would be no cap.
            let value = (at_first.used + at_first.held + room).max(1);
            bounds.push(Bound { tier: limit.tier, cap: limit.cap, value, each, most, at_first });
        }
        let caps: Vec<TierCap> = bounds.iter().map(|bound| (bound.tier, bound.cap, bound.value)).collect();
        self.marks += 1;
        let mark = format!("marker-{}", self.marks);
        self.watch.set_caps((self.project, plan.enforcement), self.key, &caps, (self.marker, &mark)).await?;
        for number in 0..EDGES {
            let url = format!("{}/v1/models", self.stack.process(self.edges[number])?.url());
            testkit::until("an edge has heard of the caps", || async {
                let answer = self.stack.http.get(&url).bearer_auth(&self.secret).send().await?;
                let models: Value = answer.error_for_status()?.json().await?;
                Ok(models["data"].as_array().is_some_and(|all| all.iter().any(|model| model["id"] == mark.as_str())))
            })
            .await?;
        }
        Ok(bounds)
    }

    /// Tells the provider what to do with the next calls. Nothing is open there.
    pub(super) fn script(&self, plan: &Plan, held_back: bool) {
        self.stack.upstream.clear();
        let queue = plan.behaviours(self.prompt, held_back);
        self.stack.upstream.script(Script { path: "/v1/chat/completions".to_owned(), queue, default: None });
    }

    /// The numbers of the calls that the provider saw since it was last scripted.
    pub(super) fn seen(&self) -> anyhow::Result<Vec<i64>> {
        let log = self.stack.upstream.log(0);
        anyhow::ensure!(log.calls.len() as u64 == log.counters.requests, "the provider has forgotten calls");
        log.calls
            .iter()
            .map(|call| number_in(&call.body).with_context(|| format!("{:?} has no number", call.body)))
            .collect()
    }

    /// Waits until nothing is in flight but what killed edges have left behind, and these calls are in the log.
    pub(super) async fn rest(&self, answered: &[i64]) -> anyhow::Result<()> {
        let idle = Wait { open: Some(0), ..Wait::default() };
        timeout(testkit::DEADLINE, self.stack.upstream.wait(idle)).await.context("calls stay open upstream")?;
        testkit::until("all calls are settled", || async {
            if self.watch.open_calls(&self.killed).await? > 0 {
                return Ok(false);
            }
            let calls = self.watch.calls(answered).await?;
            let known = |number| calls.iter().find(|call| call.number == number);
            Ok(answered.iter().all(|number| {
                known(*number).is_some_and(|call| call.status.is_some() || self.is_killed(call.instance))
            }))
        })
        .await
    }

    /// Whether a process was killed.
    pub(super) fn is_killed(&self, instance: InstanceId) -> bool {
        self.killed.contains(&instance)
    }

    /// Kills an edge.
    pub(super) async fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let edge = self.stack.process(self.edges[number])?;
        let port = edge.url().rsplit(':').next().and_then(|port| port.parse().ok()).context("an edge has no port")?;
        edge.kill().await?;
        let instances = self.watch.instances_at(port).await?;
        anyhow::ensure!(!instances.is_empty(), "the edge that was killed is not known");
        self.killed.extend(instances);
        Ok(())
    }

    /// Starts another edge in the place of one that was killed.
    pub(super) async fn replace(&mut self, number: usize) -> anyhow::Result<()> {
        let place = self.stack.spawn(Role::Edge).await?;
        let http = self.stack.http.clone();
        self.stack.process(place)?.ready(&http).await?;
        self.edges[number] = place;
        Ok(())
    }

    /// Fails if a commit has broken a rule, or sums differ.
    pub(super) async fn check(&self, sums: bool) -> anyhow::Result<()> {
        let breaches = self.watch.breaches().await?;
        anyhow::ensure!(breaches.is_empty(), "{} breaches: {breaches:#?}", breaches.len());
        if sums {
            let differences = self.watch.differences().await?;
            anyhow::ensure!(differences.is_empty(), "{} differences: {differences:#?}", differences.len());
        }
        Ok(())
    }

    /// Waits for the calls of killed edges, and checks everything once more with nothing left in flight.
    pub(super) async fn at_rest(&mut self, tally: &mut Tally) -> anyhow::Result<()> {
        testkit::until("the calls of killed edges are given up", || async {
            Ok(self.watch.open_calls(&[]).await? == 0)
        })
        .await?;
        self.check(true).await?;
        for tier in [Tier::Project, Tier::Key] {
            for cap in testkit::Cap::ALL {
                let meter = self.meter(tier, cap).await?;
                anyhow::ensure!(meter.held == 0, "{tier:?} {cap:?} {meter:?}");
            }
        }
        let pending: Vec<i64> = std::mem::take(&mut tally.pending).into_iter().collect();
        let calls = self.watch.calls(&pending).await?;
        let numbers: Vec<i64> = calls.iter().map(|call| call.number).collect();
        anyhow::ensure!(numbers == pending, "of {pending:?} the ledger has {numbers:?}");
        for call in &calls {
            let is_lost = call.error_code.as_deref() == Some("edge_lost") && call.state.as_deref() == Some("estimated");
            anyhow::ensure!(is_lost && call.status == Some(499) && self.is_killed(call.instance), "{call:?}");
            let charged = (call.charged_requests, call.charged_tokens, call.charged_cost);
            anyhow::ensure!(charged == (Some(1), Some(call.held_tokens), Some(call.held_cost)), "{call:?}");
            tally.lost += 1;
        }
        tally.commits = self.watch.commits().await?;
        anyhow::ensure!(tally.commits >= i64::try_from(tally.rounds)?, "commits went by unwatched");
        Ok(())
    }

    /// Ends everything in order. No edge has met a fault of ours.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        for number in 0.. {
            let Ok(process) = self.stack.process(number) else { break };
            let log = process.log();
            let faults: Vec<&str> = log.lines().filter(|line| line.contains("\"level\":\"error\"")).collect();
            anyhow::ensure!(faults.is_empty(), "{faults:#?}");
            if process.is_running() {
                let status = process.stop(Duration::from_secs(90)).await?;
                anyhow::ensure!(status.success(), "an edge ended with {status}:\n{}", process.log_tail());
            }
        }
        drop(self.stack);
        self.server.stop().await
    }
}
