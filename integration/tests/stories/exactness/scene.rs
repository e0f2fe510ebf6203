//! What the story is played on: a PostgreSQL of its own that keeps what it commits, three edges, and who calls.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use testkit::{InstanceId, LedgerWatch, Meter, PrivateServer, Role, RouteId, Stack, TierCap};
use tokio::time::timeout;
use upstream::{Script, Wait};

use super::bound::{Amount, Bound, share};
use super::caller::{Call, Outcome, number_in};
use super::cast::{Cast, PARTIES};
use super::compare::{AllSeen, Seen, is_own};
use super::plan::{Caller, EDGES, Leave, Limit, PADDINGS, Plan};
use super::tally::Tally;

pub(super) struct Scene {
    pub(super) stack: Stack,
    pub(super) server: PrivateServer,
    pub(super) watch: LedgerWatch,
    pub(super) cast: Cast,
    /// Processes that were killed.
    pub(super) killed: Vec<InstanceId>,
    /// Tokens that a prompt with this padding counts as.
    prompts: BTreeMap<usize, i64>,
    edges: Vec<usize>,
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
        let cast = Cast::of(&stack).await?;
        let connection =
            stack.database.insert_connection("marked", &stack.upstream.base_url(), "model-of-the-mark").await?;
        let marker = stack.database.insert_route(cast.projects[PARTIES[0].project].id, "marker", connection).await?;
        let mut scene = Self {
            cast,
            edges: (0..EDGES).collect(),
            stack,
            server,
            watch,
            killed: Vec::new(),
            prompts: BTreeMap::new(),
            marker,
            marks: 0,
            calls: 0,
        };
        for edge in 0..EDGES {
            for (number, padding) in PADDINGS.into_iter().enumerate() {
                scene
                    .measure_prompt(Caller {
                        party: PARTIES[(edge + number) % PARTIES.len()],
                        edge,
                        output: 64,
                        padding,
                        streamed: false,
                        leave: Leave::Never,
                    })
                    .await?;
            }
        }
        Ok(scene)
    }

    /// What a call holds beside its output bound, which must be the same at every edge and for every model.
    async fn measure_prompt(&mut self, caller: Caller) -> anyhow::Result<()> {
        let call = self.call(caller)?;
        let number = call.number;
        let over = call.make(&self.stack.http).await;
        anyhow::ensure!(matches!(over.outcome, Outcome::Served(_)), "{:?}", over.outcome);
        self.rest(&[number]).await?;
        let calls = self.watch.calls(&[number]).await?;
        let prompt = calls.first().context("the call is not known")?.held_tokens - caller.output;
        let known = *self.prompts.entry(caller.padding).or_insert(prompt);
        anyhow::ensure!(prompt == known, "prompts of {prompt} and {known} tokens for {caller:?}");
        Ok(())
    }

    /// The next call.
    pub(super) fn call(&mut self, caller: Caller) -> anyhow::Result<Call> {
        self.calls += 1;
        let client = &self.cast.projects[caller.party.project];
        Ok(Call {
            number: self.calls,
            caller,
            url: format!("{}/v1", self.stack.process(self.edges[caller.edge])?.url()),
            secret: self.cast.secret(caller.party).to_owned(),
            project: client.id.to_string(),
            route: client.route.clone(),
        })
    }

    /// What a call of this caller holds.
    pub(super) fn hold(&self, caller: Caller) -> Amount {
        self.cast.amount(caller.party, self.prompts[&caller.padding], caller.output)
    }

    /// What is taken of each.
    pub(super) async fn meters(&self, bounds: &[Bound]) -> anyhow::Result<Vec<Meter>> {
        let mut meters = Vec::with_capacity(bounds.len());
        for bound in bounds {
            meters.push(self.watch.meter(bound.tier, bound.cap).await?);
        }
        Ok(meters)
    }

    /// Sets caps that leave this room, and waits until every edge has heard of them. The ledger is at rest.
    pub(super) async fn limit(&mut self, plan: &Plan, limits: &[Limit]) -> anyhow::Result<Vec<Bound>> {
        let mut bounds = Vec::new();
        for Limit { who, cap, calls, slack } in limits.iter().copied() {
            // As large as one of those that call for it.
            let usual = plan.callers.iter().find(|caller| caller.party.counts_for(who)).unwrap_or(&plan.callers[0]);
            let each = share(cap, self.hold(*usual));
            let tier = self.cast.tier(who);
            let at_first = self.watch.meter(tier, cap).await?;
            // 0 would be no cap.
            let value = (at_first.used + at_first.held + calls * each + slack.of(each)).max(1);
            bounds.push(Bound { who, tier, cap, value, at_first });
        }
        let caps: Vec<TierCap> = bounds.iter().map(|bound| (bound.tier, bound.cap, bound.value)).collect();
        self.marks += 1;
        let mark = format!("marker-{}", self.marks);
        self.watch.set_caps(&self.cast.tiers(), plan.enforcement, &caps, (self.marker, &mark)).await?;
        let secret = self.cast.secret(PARTIES[0]);
        let project = self.cast.projects[PARTIES[0].project].id.to_string();
        for number in 0..EDGES {
            let url = format!("{}/v1/models", self.stack.process(self.edges[number])?.url());
            testkit::until("an edge has heard of the caps", || async {
                let answer =
                    self.stack.http.get(&url).bearer_auth(secret).header("x-ragmux-project", &project).send().await?;
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
        let shortest = self.prompts.values().min().copied().unwrap_or_default();
        let queue = plan.behaviours(shortest, held_back);
        self.stack.upstream.script(Script { path: "/v1/chat/completions".to_owned(), queue, default: None });
    }

    /// The calls that the provider saw since it was last scripted, each once.
    pub(super) fn seen(&self) -> anyhow::Result<AllSeen> {
        let log = self.stack.upstream.log(0);
        anyhow::ensure!(log.calls.len() as u64 == log.counters.requests, "the provider has forgotten calls");
        let mut seen = AllSeen::new();
        for call in log.calls {
            let number = number_in(&call.body).with_context(|| format!("{:?} has no number", call.body))?;
            let before = seen.insert(number, Seen { model: call.model, figures: call.figures });
            anyhow::ensure!(before.is_none(), "the provider saw call {number} twice");
        }
        Ok(seen)
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
            let known = |number| calls.iter().find(|call| call.number == Some(number));
            Ok(answered
                .iter()
                .all(|number| known(*number).is_some_and(|call| call.row.is_some() || self.is_killed(call.instance))))
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
        for tier in self.cast.tiers() {
            for cap in testkit::Cap::ALL {
                let meter = self.watch.meter(tier, cap).await?;
                anyhow::ensure!(meter.held == 0, "{tier:?} {cap:?} {meter:?}");
            }
        }
        let pending = std::mem::take(&mut tally.pending);
        let numbers: Vec<i64> = pending.keys().copied().collect();
        let calls = self.watch.calls(&numbers).await?;
        for (number, caller) in pending {
            let call = calls.iter().find(|call| call.number == Some(number));
            let told = || format!("call {number} of {caller:?} is {call:?}");
            let (call, row) = call.and_then(|call| Some((call, call.row.as_ref()?))).with_context(told)?;
            is_own(self, number, caller, row).with_context(told)?;
            let is_lost =
                (row.status, row.error_code.as_deref(), row.state.as_str()) == (499, Some("edge_lost"), "estimated");
            anyhow::ensure!(is_lost && self.is_killed(call.instance), "{}", told());
            let hold = self.hold(caller);
            let charged = (row.charged_requests, row.charged_tokens, row.charged_cost);
            anyhow::ensure!(charged == (1, hold.tokens, hold.cost), "{}", told());
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
