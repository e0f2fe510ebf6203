//! What happens in a round, drawn from the seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use testkit::{Cap, Tier};
use upstream::{Behaviour, Figures};

use super::scale::Scale;

/// Callers at once.
pub(super) const CALLERS: usize = 64;
pub(super) const EDGES: usize = 3;

/// A cap, and the room it leaves: for so many calls and a part of one more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) tier: Tier,
    pub(super) cap: Cap,
    pub(super) calls: i64,
    pub(super) slack: Slack,
}

/// The part of a call for which there is room as well.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slack {
    None,
    /// All but the smallest unit.
    Almost,
    /// So many thousandths.
    Part(i64),
}

impl Slack {
    /// Of a call that takes this much.
    pub(super) fn of(self, each: i64) -> i64 {
        match self {
            Self::None => 0,
            Self::Almost => each - 1,
            Self::Part(thousandths) => (each - 1) * thousandths / 1000,
        }
    }
}

/// When a client leaves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leave {
    Never,
    /// After so long, unless the answer has begun.
    Before(Duration),
    /// When so many bytes of the answer are there.
    At(usize),
}

/// One of the callers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) edge: usize,
    pub(super) streamed: bool,
    pub(super) leave: Leave,
}

/// A `kill -9` of an edge, when the provider has seen so many calls of the round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kill {
    pub(super) edge: usize,
    pub(super) after: u64,
}

pub(super) struct Plan {
    /// What limits the callers, and what limits those that follow one by one.
    pub(super) limits: Vec<Limit>,
    pub(super) step_limits: Vec<Limit>,
    pub(super) enforcement: &'static str,
    /// The output bound of every call. Up to 64 it is also the least output that is worth a call, so that every call holds
    /// the same or is denied.
    pub(super) output: i64,
    /// Whether the provider reports more than was asked for.
    pub(super) exceeds: bool,
    /// Whether no answer begins before all calls are admitted or denied. Then exactly so many are admitted as have room.
    pub(super) held_back: bool,
    pub(super) callers: Vec<Caller>,
    pub(super) steps: Vec<Caller>,
    pub(super) kill: Option<Kill>,
    behaviours: Vec<Behaviour>,
}

impl Plan {
    pub(super) fn of_round(scale: &Scale, round: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(scale.seed.wrapping_add(round as u64));
        let kills = round % scale.kills_every() == 2;
        let held_back = !kills && rng.random_ratio(1, 3);
        let exceeds = rng.random_ratio(1, 5);
        let output = rng.random_range(16..=64);
        // A call that nothing limits may lose its last milliseconds with its edge, so that nothing is killed beside one.
        // And there is room for calls that it can end.
        let mut limits = limits(&mut rng, first_cap(scale.seed, round), if kills { 24 } else { 0 });
        if !kills && rng.random_ratio(1, 10) {
            limits.clear();
        }
        Self {
            step_limits: limits.iter().map(|limit| Limit { calls: rng.random_range(0..=3), ..*limit }).collect(),
            limits,
            enforcement: if rng.random_bool(0.5) { "hard" } else { "soft" },
            output,
            exceeds,
            held_back,
            callers: (0..CALLERS).map(|_| caller(&mut rng, !held_back)).collect(),
            steps: (0..10).map(|_| caller(&mut rng, false)).collect(),
            kill: kills.then(|| Kill { edge: rng.random_range(0..EDGES), after: rng.random_range(1..=20) }),
            behaviours: (0..CALLERS + 10).map(|_| behaviour(&mut rng, output, exceeds)).collect(),
        }
    }

    /// The most a provider reports for a call, as output.
    pub(super) fn most_output(&self) -> i64 {
        if self.exceeds { 3 * self.output } else { self.output }
    }

    /// What the provider does with the next calls, all of which have this prompt.
    pub(super) fn behaviours(&self, prompt: i64, held_back: bool) -> Vec<Behaviour> {
        let with_prompt = |behaviour: &Behaviour| {
            let figures = behaviour.figures.map(|figures| Figures { prompt_tokens: prompt.unsigned_abs(), ..figures });
            Behaviour { figures, hold: held_back, ..behaviour.clone() }
        };
        self.behaviours.iter().map(with_prompt).collect()
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("limits", &self.limits)
            .field("step_limits", &self.step_limits)
            .field("enforcement", &self.enforcement)
            .field("output", &self.output)
            .field("exceeds", &self.exceeds)
            .field("held_back", &self.held_back)
            .field("kill", &self.kill)
            .finish_non_exhaustive()
    }
}

/// Every cap of both tiers has its turn, in an order of the seed.
fn first_cap(seed: u64, round: usize) -> (Tier, Cap) {
    let mut all: Vec<_> =
        [Tier::Project, Tier::Key].into_iter().flat_map(|tier| Cap::ALL.map(|cap| (tier, cap))).collect();
    all.shuffle(&mut StdRng::seed_from_u64(seed));
    all[round % all.len()]
}

fn limits(rng: &mut StdRng, first: (Tier, Cap), least_room: i64) -> Vec<Limit> {
    let second = first_cap(rng.random(), 0);
    let both = if second != first && rng.random_ratio(1, 4) { vec![first, second] } else { vec![first] };
    let limit = |(tier, cap)| {
        let room = match rng.random_range(0..6) {
            0 => 0..=2,
            1 | 2 => 0..=CALLERS as i64 + 16,
            _ => 8..=40,
        };
        let calls = rng.random_range(room).max(least_room);
        let slack = match rng.random_range(0..3) {
            0 => Slack::None,
            1 => Slack::Almost,
            _ => Slack::Part(rng.random_range(0..=1000)),
        };
        Limit { tier, cap, calls, slack }
    };
    both.into_iter().map(limit).collect()
}

fn caller(rng: &mut StdRng, may_leave: bool) -> Caller {
    let leave = match rng.random_range(0..10) {
        0 | 1 if may_leave => Leave::Before(Duration::from_micros(rng.random_range(0..60_000))),
        2 | 3 if may_leave => Leave::At(rng.random_range(0..3_000)),
        _ => Leave::Never,
    };
    Caller { edge: rng.random_range(0..EDGES), streamed: rng.random_bool(0.5), leave }
}

fn behaviour(rng: &mut StdRng, output: i64, exceeds: bool) -> Behaviour {
    let reported = if exceeds { output + 1..=3 * output } else { 1..=output };
    // Far from the bound, whatever a piece counts as, so that what is delivered is never cut here.
    let chunks = rng.random_range(1..=4);
    Behaviour {
        first_byte_ms: rng.random_range(0..=30),
        between_events_ms: rng.random_range(0..=6),
        chunks: Some(chunks),
        figures: Some(Figures { completion_tokens: rng.random_range(reported).unsigned_abs(), ..Figures::default() }),
        // In the middle of what it says: an answer that has come to its finish reason is whole, however its connection ends.
        cut_after_events: rng.random_ratio(1, 12).then(|| rng.random_range(1..=chunks)),
        ..Behaviour::default()
    }
}
