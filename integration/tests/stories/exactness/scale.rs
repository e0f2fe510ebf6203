//! How long the story is, and which one of all it is.

use std::fmt;

use anyhow::Context;

/// Rounds; more for the long version.
const ROUNDS: &str = "RAGMUX_EXACTNESS_ROUNDS";
/// What a run draws its plans from. The order in which things happen at once is not drawn.
const SEED: &str = "RAGMUX_EXACTNESS_SEED";
const FEW_ROUNDS: usize = 40;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) rounds: usize,
    pub(super) seed: u64,
}

impl Scale {
    pub(super) fn read() -> anyhow::Result<Self> {
        Ok(Self { rounds: number(ROUNDS)?.unwrap_or(FEW_ROUNDS), seed: number(SEED)?.unwrap_or_else(rand::random) })
    }

    /// Whether it has the usual rounds at least.
    pub(super) fn is_whole(&self) -> bool {
        self.rounds >= FEW_ROUNDS
    }

    /// An edge is killed every so many rounds.
    pub(super) fn kills_every(&self) -> usize {
        if self.rounds > FEW_ROUNDS { 20 } else { 8 }
    }

    /// The database is dumped every so many rounds.
    pub(super) fn dumps_every(&self) -> usize {
        (self.rounds / 12).max(8)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROUNDS}={} {SEED}={}", self.rounds, self.seed)
    }
}

fn number<T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    name: &str,
) -> anyhow::Result<Option<T>> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().with_context(|| format!("{name} is no number"))).transpose()
}
