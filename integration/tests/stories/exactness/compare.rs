//! What clients were told, what the provider saw and what the ledger has, side by side.

use std::collections::{BTreeMap, BTreeSet};

use testkit::{WatchedCall, WatchedRow};
use upstream::Figures;

use super::bound::{Amount, Bound};
use super::caller::{Outcome, Over};
use super::plan::{Caller, Plan};
use super::scene::Scene;
use super::tally::Tally;

/// Compares them, call by call.
pub(super) async fn compare(
    scene: &Scene,
    plan: &Plan,
    bounds: &[Bound],
    over: &[Over],
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let numbers: Vec<i64> = over.iter().map(|over| over.number).collect();
    let calls = scene.watch.calls(&numbers).await?;
    let seen = scene.seen()?;
    let known: BTreeSet<Option<i64>> = calls.iter().map(|call| call.number).collect();
    for number in seen.keys() {
        anyhow::ensure!(known.contains(&Some(*number)), "call {number} was sent without admission");
    }
    for one in over {
        let of_it: Vec<_> = calls.iter().filter(|call| call.number == Some(one.number)).collect();
        let compared = Compared { scene, plan, bounds, one, call: of_it.first().copied(), seen: seen.get(&one.number) };
        anyhow::ensure!(of_it.len() <= 1, "admitted twice: {}", compared.told());
        compared.with_client(tally)?;
        compared.with_row(tally)?;
    }
    tally.admitted += calls.len() as u64;
    tally.seen += seen.len() as u64;
    Ok(())
}

/// What the provider saw of a call.
pub(super) struct Seen {
    pub(super) model: Option<String>,
    /// What it was told to report.
    pub(super) figures: Option<Figures>,
}

/// What the provider saw, by the number in the prompt.
pub(super) type AllSeen = BTreeMap<i64, Seen>;

struct Compared<'a> {
    scene: &'a Scene,
    plan: &'a Plan,
    bounds: &'a [Bound],
    one: &'a Over,
    call: Option<&'a WatchedCall>,
    seen: Option<&'a Seen>,
}

impl Compared<'_> {
    fn told(&self) -> String {
        let Over { number, caller, outcome } = self.one;
        format!("call {number} of {caller:?} was {outcome:?}, and the ledger has {:?}", self.call)
    }

    /// Whether it may have ended for its client as it did.
    fn with_client(&self, tally: &mut Tally) -> anyhow::Result<()> {
        let caller = self.one.caller;
        tally.calls += 1;
        match &self.one.outcome {
            Outcome::Denied(denial) => {
                anyhow::ensure!(self.call.is_none() && self.seen.is_none(), "denied and admitted: {}", self.told());
                let amount = self.scene.hold(caller);
                let mut of_it = self.bounds.iter().filter(|bound| caller.party.counts_for(bound.who));
                let is_right = of_it.any(|bound| bound.justifies(denial, amount));
                anyhow::ensure!(is_right, "denied without reason: {} {:?}", self.told(), self.bounds);
                *tally.denied.entry(denial.code.clone()).or_default() += 1;
            }
            Outcome::Served(_) | Outcome::CutShort | Outcome::Left { began: true } => {
                let is_known = self.call.is_some() && self.seen.is_some();
                anyhow::ensure!(is_known, "answered out of nothing: {}", self.told());
            }
            Outcome::Broken(_) => {
                anyhow::ensure!(self.plan.kill.is_some(), "a connection broke by itself: {}", self.told());
                tally.broken += 1;
            }
            Outcome::Left { began: false } => {}
            Outcome::Failed(_) => anyhow::bail!("a call failed: {}", self.told()),
        }
        tally.left += u64::from(matches!(self.one.outcome, Outcome::Left { .. }));
        tally.cut += u64::from(self.one.outcome == Outcome::CutShort);
        Ok(())
    }

    /// Whether it holds what it must, and its row is its own and says how it ended.
    fn with_row(&self, tally: &mut Tally) -> anyhow::Result<()> {
        let (Some(call), caller) = (self.call, self.one.caller) else { return Ok(()) };
        let hold = self.scene.hold(caller);
        let client = &self.scene.cast.projects[caller.party.project];
        let owner = (client.id, Some(self.scene.cast.key(caller.party)));
        anyhow::ensure!((call.project, call.key) == owner, "admitted for another: {}", self.told());
        anyhow::ensure!((call.held_tokens, call.held_cost) == (hold.tokens, hold.cost), "{hold:?}: {}", self.told());
        if let Some(seen) = self.seen {
            anyhow::ensure!(seen.model.as_ref() == Some(&client.model), "sent for {:?}: {}", seen.model, self.told());
        }
        let Some(row) = &call.row else {
            anyhow::ensure!(self.scene.is_killed(call.instance), "not logged: {}", self.told());
            tally.pending.insert(self.one.number, caller);
            return Ok(());
        };
        is_own(self.scene, self.one.number, caller, row).map_err(|error| error.context(self.told()))?;
        if row.error_code.as_deref() == Some("edge_lost") {
            anyhow::ensure!(self.scene.is_killed(call.instance), "given up by mistake: {}", self.told());
            tally.lost += 1;
            return Ok(());
        }
        anyhow::ensure!(row.charged_requests == 1 || self.seen.is_none(), "not counted: {}", self.told());
        let is_within = row.charged_tokens <= hold.tokens && row.charged_cost <= hold.cost;
        anyhow::ensure!(self.plan.exceeds || is_within, "charged too much: {}", self.told());
        self.with_report(row)?;
        match &self.one.outcome {
            Outcome::Served(told) => {
                let reported = row.prompt_tokens.zip(row.completion_tokens);
                let is_right = reported.is_some() && told.is_none_or(|told| Some(told) == reported);
                let is_plain = (row.status, row.error_code.as_deref(), row.state.as_str()) == (200, None, "final");
                anyhow::ensure!(is_right && is_plain, "served otherwise: {}", self.told());
            }
            Outcome::CutShort => anyhow::ensure!(row.status >= 500, "not logged as cut: {}", self.told()),
            _ => anyhow::ensure!([200, 499, 502].contains(&row.status), "logged otherwise: {}", self.told()),
        }
        Ok(())
    }

    /// Usage that the row has is what the provider reported for this very call, and exactly that is charged, at the prices
    /// of its own model.
    fn with_report(&self, row: &WatchedRow) -> anyhow::Result<()> {
        let Some((prompt, completion)) = row.prompt_tokens.zip(row.completion_tokens) else { return Ok(()) };
        let figures = self.seen.and_then(|seen| seen.figures);
        let reported = figures.map(|figures| (figures.prompt_tokens, figures.completion_tokens));
        let is_reported = reported == Some((prompt.unsigned_abs(), completion.unsigned_abs()));
        anyhow::ensure!(is_reported, "{reported:?} was reported: {}", self.told());
        let charge = self.scene.cast.amount(self.one.caller.party, prompt, completion);
        let charged = Amount { tokens: row.charged_tokens, cost: row.charged_cost };
        anyhow::ensure!(charged == charge, "{charge:?} is to be charged: {}", self.told());
        Ok(())
    }
}

/// Fails unless the row says whose call it is, and of which.
pub(super) fn is_own(scene: &Scene, number: i64, caller: Caller, row: &WatchedRow) -> anyhow::Result<()> {
    let client = &scene.cast.projects[caller.party.project];
    let owner = (Some(number), client.id, Some(scene.cast.key(caller.party)));
    anyhow::ensure!((row.number, row.project, row.key) == owner, "it is logged as another's");
    let asked = (Some(client.route.as_str()), Some(client.model.as_str()));
    anyhow::ensure!((row.route.as_deref(), row.model.as_deref()) == asked, "it is logged for another model");
    anyhow::ensure!(row.streamed == caller.streamed, "it is logged in another form");
    Ok(())
}
