//! What is measured, a file for each.
//!
//! A scenario answers with its figures, each with its bar. A new one is a file here, a variant of [`Scenario`] and a line
//! in [`Scenario::run`].

mod beside;
mod busy;
mod latency;
mod many;
mod memory;
mod pairs;
mod streaming;

use clap::ValueEnum;

use crate::bed::Bed;
use crate::course::Course;
use crate::figure::Figure;
use crate::placement::Pins;

/// A thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Added latency of one client.
    Latency,
    /// CPU of a call with eight clients.
    Cpu,
    /// Calls a second, governed and not.
    Throughput,
    /// Time to the first event of a stream, and between its events.
    Streaming,
    /// Many streams at once.
    Many,
    /// Memory of an edge.
    Memory,
    /// Admissions and settlements a second on one key.
    Pairs,
    /// Admissions beside a transaction that somebody has left open.
    Beside,
}

/// What is measured.
pub(crate) enum Ground {
    /// An installation of our own.
    Edge(Box<Bed>),
    /// Another server.
    Peer(Box<Course>),
}

impl Ground {
    /// What all grounds have.
    pub(crate) fn course(&self) -> &Course {
        match self {
            Self::Edge(bed) => &bed.course,
            Self::Peer(course) => course,
        }
    }
}

impl Scenario {
    /// All, in the order in which they run.
    pub(crate) const ALL: [Self; 8] = [
        Self::Latency,
        Self::Cpu,
        Self::Throughput,
        Self::Streaming,
        Self::Many,
        Self::Memory,
        Self::Pairs,
        Self::Beside,
    ];

    /// What it is about.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Latency => "added latency at one client",
            Self::Cpu => "CPU of a call at eight clients",
            Self::Throughput => "throughput on one hot key",
            Self::Streaming => "time to the first event of a stream and between its events",
            Self::Many => "many streams at once",
            Self::Memory => "memory of an edge",
            Self::Beside => "admissions beside an open transaction",
            Self::Pairs => "admissions and settlements on one hot key",
        }
    }

    /// Where the processes run. Single calls vary less when they are pinned; where it counts how much there is in all,
    /// they may use the whole machine.
    pub(crate) fn pins(self) -> Pins {
        match self {
            Self::Latency | Self::Streaming => Pins::SingleCalls,
            Self::Cpu => Pins::ManyCalls,
            Self::Throughput | Self::Many | Self::Memory | Self::Pairs | Self::Beside => Pins::None,
        }
    }

    /// Measures; `None` where the ground has no such thing.
    pub(crate) async fn run(self, ground: &mut Ground) -> Option<anyhow::Result<Vec<Figure>>> {
        match (self, &mut *ground) {
            (Self::Latency, _) => Some(latency::run(ground.course()).await),
            (Self::Cpu, _) => Some(busy::cpu(ground.course()).await),
            (Self::Throughput, _) => Some(busy::throughput(ground.course()).await),
            (Self::Streaming, _) => Some(streaming::run(ground.course()).await),
            (Self::Many, _) => Some(many::run(ground.course()).await),
            (Self::Memory, Ground::Edge(bed)) => Some(memory::run(bed).await),
            (Self::Pairs, Ground::Edge(bed)) => Some(pairs::run(bed).await),
            (Self::Beside, Ground::Edge(bed)) => Some(beside::run(bed).await),
            (Self::Memory | Self::Pairs | Self::Beside, Ground::Peer(_)) => None,
        }
    }
}
