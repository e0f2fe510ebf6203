//! What a scenario runs on: the ways to the upstream, and the processes in between.

use std::time::Duration;

use crate::load::Clients;
use crate::machine;
use crate::placement::{Pins, Placement};
use crate::scale::Scale;
use crate::traffic::Leg;
use crate::upstream_process::UpstreamProcess;

/// The leg without anything in between. It is always the first.
pub(crate) const DIRECT: &str = "direct";
/// Through an edge with a key that has no limit.
pub(crate) const NO_LIMITS: &str = "no limits";
/// Through an edge with a key that has every kind of limit and budget.
pub(crate) const GOVERNED: &str = "governed";
/// Through another server.
pub(crate) const PEER: &str = "through";

/// Everything a scenario needs that all servers have.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) scale: Scale,
    pub(crate) upstream: UpstreamProcess,
    /// The ways to the upstream, the direct one first.
    pub(crate) legs: Vec<Leg>,
    /// The server in between, if its process is known.
    pub(crate) server: Option<u32>,
    /// The database's first process.
    pub(crate) database: Option<u32>,
    /// The processors that may be used.
    pub(crate) processors: Vec<usize>,
    /// Whether what comes through is byte for byte what the upstream sent.
    pub(crate) keeps_bytes: bool,
}

/// CPU time used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) server: Duration,
    pub(crate) database: Duration,
    pub(crate) upstream: Duration,
    pub(crate) client: Duration,
    /// All of the machine, others included.
    pub(crate) machine: Duration,
}

impl Spent {
    /// What was used between two readings.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            server: self.server.saturating_sub(before.server),
            database: self.database.saturating_sub(before.database),
            upstream: self.upstream.saturating_sub(before.upstream),
            client: self.client.saturating_sub(before.client),
            machine: self.machine.saturating_sub(before.machine),
        }
    }

    /// The share of the machine that was used by others during so long.
    pub(crate) fn foreign(self, length: Duration) -> f64 {
        let ours = self.server + self.database + self.upstream + self.client;
        let all = length.as_secs_f64() * machine::processors() as f64;
        (self.machine.saturating_sub(ours).as_secs_f64() / all).min(1.0)
    }
}

impl Course {
    /// Puts the processes in their places.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn place(&self, pins: Pins) -> anyhow::Result<()> {
        let place = match pins {
            Pins::None => Placement::together,
            Pins::ManyCalls => Placement::of_many_calls,
            Pins::SingleCalls => Placement::of_single_calls,
        };
        place(&self.processors).apply(self.upstream.pid(), self.server, self.database)
    }

    /// So many clients of each leg.
    pub(crate) fn clients(&self, count: usize) -> Vec<Clients> {
        self.legs.iter().map(|leg| Clients::new(leg.chat(), count)).collect()
    }

    /// Reads the clocks of all processes.
    pub(crate) fn spent(&self) -> Spent {
        let own = std::process::id();
        let of = |pid: Option<u32>| pid.and_then(|pid| machine::cpu(pid).ok()).unwrap_or_default();
        Spent {
            server: of(self.server),
            database: self.database.map(machine::cpu_of_family).unwrap_or_default(),
            upstream: of(self.upstream.pid()),
            client: of(Some(own)) + machine::cpu_of_ended_children(own),
            machine: machine::busy(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_here_used_is_foreign() {
        let seconds = Duration::from_secs;
        let all = 10 * machine::processors() as u64;
        let before = Spent { machine: seconds(5), ..Spent::default() };
        let after = Spent {
            server: seconds(1),
            database: seconds(1),
            upstream: seconds(1),
            client: seconds(1),
            machine: seconds(5 + all),
        };
        let share = after.since(before).foreign(seconds(10));
        assert!((share - (all as f64 - 4.0) / all as f64).abs() < 1e-9, "{share}");
        assert_eq!(before.since(before).foreign(seconds(10)), 0.0);
    }
}
