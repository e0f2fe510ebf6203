//! What a run has seen.

use std::collections::BTreeMap;
use std::fmt;

use super::plan::{Caller, Plan};
use super::scale::Scale;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) rounds: u64,
    pub(super) calls: u64,
    pub(super) admitted: u64,
    pub(super) denied: BTreeMap<String, u64>,
    /// Clients that left.
    pub(super) left: u64,
    /// Answers the provider cut.
    pub(super) cut: u64,
    pub(super) kills: u64,
    /// Connections that broke with an edge.
    pub(super) broken: u64,
    /// Requests the provider saw.
    pub(super) seen: u64,
    /// Rounds of held-back calls in which nobody was denied who had room in the end.
    pub(super) exact: u64,
    /// Steps that were judged, and those beside which something else moved.
    pub(super) steps: u64,
    pub(super) disturbed: u64,
    /// Calls settled as those of a lost edge.
    pub(super) lost: u64,
    pub(super) commits: i64,
    /// Calls of killed edges that have no log row yet, by number.
    pub(super) pending: BTreeMap<i64, Caller>,
}

impl Tally {
    /// Fails if the run, however well it went, has judged too little to say anything. What a few rounds meet is chance.
    pub(super) fn has_weight(&self, scale: &Scale) -> anyhow::Result<()> {
        let kills = (0..scale.rounds).filter(|round| Plan::of_round(scale, *round).kill.is_some()).count();
        anyhow::ensure!(self.kills == kills as u64, "{kills} kills were planned");
        if scale.is_whole() {
            anyhow::ensure!(self.exact > 0, "no round was judged to the call");
            anyhow::ensure!(!self.denied.is_empty(), "nothing was denied");
            anyhow::ensure!(self.disturbed < self.steps, "most steps were not judged");
        }
        Ok(())
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let denied: Vec<String> = self.denied.iter().map(|(code, count)| format!("{code} {count}")).collect();
        write!(
            f,
            "{} rounds ({} exact), {} calls, {} admitted, {} denied ({}), {} seen upstream, {} aborted, {} cut, {} kills \
             ({} broken, {} settled as lost), {} steps ({} disturbed), {} commits checked, no breach",
            self.rounds,
            self.exact,
            self.calls,
            self.admitted,
            self.denied.values().sum::<u64>(),
            denied.join(", "),
            self.seen,
            self.left,
            self.cut,
            self.kills,
            self.broken,
            self.lost,
            self.steps,
            self.disturbed,
            self.commits,
        )
    }
}
