//! What happens in a round, drawn from the seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use testkit::Cap;
use upstream::{Behaviour, Figures};

use super::cast::{CAPPED_PROJECTS, KEYS, PARTIES, PROJECTS, Party, Who, capped};
use super::scale::Scale;

/// Callers at once.
pub(super) const CALLERS: usize = 64;
pub(super) const EDGES: usize = 3;
/// What a prompt may have more than the shortest one.
pub(super) const PADDINGS: [usize; 4] = [0, 5, 30, 120];
/// Output bounds. Up to 64 they are also the least output that is worth a call, so that a call holds all of it or is
/// denied.
const OUTPUTS: std::ops::RangeInclusive<i64> = 16..=64;
/// More than all callers of a round take, whoever they are.
const PLENTY: i64 = 1_000;

/// A cap, and the room it leaves: for so many calls of a common size and a part of one more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) who: Who,
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
    pub(super) party: Party,
    pub(super) edge: usize,
    /// The output bound.
    pub(super) output: i64,
    /// One of [`PADDINGS`].
    pub(super) padding: usize,
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
    /// Whether the provider reports more than was asked for.
    pub(super) exceeds: bool,
    /// Whether no answer begins before all calls are admitted or denied. Then none is denied that has room in the end.
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
        let first = first_cap(scale.seed, round);
        let mut limits = limits(&mut rng, first, kills);
        if !kills && rng.random_ratio(1, 10) {
            limits.clear();
        }
        let step_limit = |rng: &mut StdRng, limit: &Limit| {
            let calls = if rng.random_bool(0.5) { rng.random_range(0..=3) } else { limit.calls };
            Limit { calls, ..*limit }
        };
        Self {
            step_limits: limits.iter().map(|limit| step_limit(&mut rng, limit)).collect(),
            limits,
            enforcement: if rng.random_bool(0.5) { "hard" } else { "soft" },
            exceeds,
            held_back,
            callers: (0..CALLERS).map(|_| caller(&mut rng, first.0, !held_back)).collect(),
            steps: (0..6).map(|_| caller(&mut rng, first.0, false)).collect(),
            kill: kills.then(|| Kill { edge: rng.random_range(0..EDGES), after: rng.random_range(1..=20) }),
            behaviours: (0..CALLERS + 10).map(|_| behaviour(&mut rng, exceeds)).collect(),
        }
    }

    /// What the provider does with the next calls, whichever comes first, when no prompt is shorter than this.
    pub(super) fn behaviours(&self, shortest_prompt: i64, held_back: bool) -> Vec<Behaviour> {
        let with_prompt = |behaviour: &Behaviour| {
            let prompt = |figures: Figures| figures.prompt_tokens * shortest_prompt.unsigned_abs() / 1000;
            let figures = behaviour.figures.map(|figures| Figures { prompt_tokens: prompt(figures).max(1), ..figures });
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
            .field("exceeds", &self.exceeds)
            .field("held_back", &self.held_back)
            .field("kill", &self.kill)
            .finish_non_exhaustive()
    }
}

/// Every cap of every project and key has its turn, in an order of the seed.
fn first_cap(seed: u64, round: usize) -> (Who, Cap) {
    let mut all: Vec<_> = capped().collect();
    all.shuffle(&mut StdRng::seed_from_u64(seed));
    all[round % all.len()]
}

/// What is capped in a round: who has the turn, and some of the others, each with a cap of its own. A project that is spent
/// stands beside others that have room.
fn limits(rng: &mut StdRng, (first, cap): (Who, Cap), kills: bool) -> Vec<Limit> {
    let mut limits = vec![limit(rng, first, cap, if kills { 24 } else { 0 })];
    let others = (0..CAPPED_PROJECTS).map(Who::Project).chain((0..KEYS).map(Who::Key)).filter(|who| *who != first);
    for who in others {
        if rng.random_bool(0.5) && !kills {
            let cap = Cap::ALL[rng.random_range(0..Cap::ALL.len())];
            limits.push(limit(rng, who, cap, 0));
        }
    }
    // A call that nothing limits may lose its last milliseconds with its edge, so that nothing is killed beside one. And
    // there is room for calls that it can end.
    for who in (0..PROJECTS).map(Who::Project).filter(|who| kills && *who != first) {
        let cap = Cap::ALL[rng.random_range(0..Cap::ALL.len())];
        limits.push(Limit { who, cap, calls: PLENTY, slack: Slack::None });
    }
    limits
}

fn limit(rng: &mut StdRng, who: Who, cap: Cap, least_room: i64) -> Limit {
    let room = match rng.random_range(0..6) {
        0 => 0..=2,
        1 => 0..=CALLERS as i64,
        _ => 2..=24,
    };
    let calls = rng.random_range(room).max(least_room);
    let slack = match rng.random_range(0..3) {
        0 => Slack::None,
        1 => Slack::Almost,
        _ => Slack::Part(rng.random_range(0..=1000)),
    };
    Limit { who, cap, calls, slack }
}

/// Every other one counts for who has the turn.
fn caller(rng: &mut StdRng, turn: Who, may_leave: bool) -> Caller {
    let party = loop {
        let party = PARTIES[rng.random_range(0..PARTIES.len())];
        if party.counts_for(turn) || rng.random_bool(0.5) {
            break party;
        }
    };
    let leave = match rng.random_range(0..10) {
        0 | 1 if may_leave => Leave::Before(Duration::from_micros(rng.random_range(0..60_000))),
        2 | 3 if may_leave => Leave::At(rng.random_range(0..3_000)),
        _ => Leave::Never,
    };
    Caller {
        party,
        edge: rng.random_range(0..EDGES),
        output: rng.random_range(OUTPUTS),
        padding: PADDINGS[rng.random_range(0..PADDINGS.len())],
        streamed: rng.random_bool(0.5),
        leave,
    }
}

fn behaviour(rng: &mut StdRng, exceeds: bool) -> Behaviour {
    // Whichever call it is for: within the hold of the smallest one, or more likely than not beyond.
    let (prompt, completion) = if exceeds { (500..=9_000, 65..=190) } else { (1..=1_000, 1..=*OUTPUTS.start()) };
    let figures = Figures {
        // Thousandths of the shortest prompt, until that is known.
        prompt_tokens: rng.random_range(prompt),
        completion_tokens: rng.random_range(completion).unsigned_abs(),
        ..Figures::default()
    };
    // Far from the bound, whatever a piece counts as, so that what is delivered is never cut here.
    let chunks = rng.random_range(1..=4);
    Behaviour {
        first_byte_ms: rng.random_range(0..=30),
        between_events_ms: rng.random_range(0..=6),
        chunks: Some(chunks),
        figures: Some(figures),
        // In the middle of what it says: an answer that has come to its finish reason is whole, however its connection ends.
        cut_after_events: rng.random_ratio(1, 12).then(|| rng.random_range(1..=chunks)),
        ..Behaviour::default()
    }
}
