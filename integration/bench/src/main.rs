//! The benchmark: the bars of the product, measured on real processes in one run.
//!
//! `ragmux-bench edge` starts a PostgreSQL with durable settings, an edge of the program beside this one, and the scripted
//! upstream, each a process of its own, and runs the scenarios of [`scenarios`]. What goes direct and what goes through
//! the edge is measured in interleaved rounds in random order; a window with a failed call is void. `ragmux-bench peer`
//! runs the same work through any other OpenAI-compatible server. `ragmux-bench queue` measures the document queue,
//! `ragmux-bench quality` how good retrieval is, `ragmux-bench search` how fast it is in a large store; `ragmux-bench text`
//! compares the text of PDFs with poppler's.

mod arguments;
mod bed;
mod course;
mod figure;
mod http;
mod load;
mod machine;
mod placement;
mod quality;
mod queue;
mod report;
mod scale;
mod scenarios;
mod search;
mod stats;
mod streams;
mod text;
mod traffic;
mod upstream_process;

use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use clap::Parser as _;

use crate::arguments::{Arguments, Command, Peer, Quality, Queue, Run, Search};
use crate::bed::Bed;
use crate::course::{Course, PEER};
use crate::placement::Pins;
use crate::report::{Report, say};
use crate::scenarios::{Ground, Scenario};
use crate::upstream_process::UpstreamProcess;

/// One thread for all clients: they must not take the processors from what is measured.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Edge(run) => interruptible(edge(run)).await,
        Command::Peer(peer) => interruptible(self::peer(peer)).await,
        Command::Queue(run) => interruptible(self::queue(run)).await,
        Command::Quality(run) => interruptible(self::quality(run)).await,
        Command::Search(run) => interruptible(self::search(run)).await,
        Command::Upstream(upstream) => upstream_process::run(upstream).await,
        Command::Text(text) => interruptible(text::run(text)).await,
    }
}

/// Runs until it is done or Ctrl-C comes; either way what was started is ended on the way out.
async fn interruptible(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::select! {
        done = work => done,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            bail!("interrupted")
        }
    }
}

async fn edge(run: Run) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        say("this is a debug build: its figures mean nothing");
    }
    run.nice.map_or(Ok(()), placement::rank)?;
    let mut ground = Ground::Edge(Box::new(Bed::start(run.scale()).await?));
    let report = measure(&run, &mut ground).await?;
    if let Ground::Edge(bed) = ground {
        bed.stop().await?;
    }
    finish(run.json.as_deref(), &report)
}

async fn queue(run: Queue) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        say("this is a debug build, though most of the work is PostgreSQL's");
    }
    finish(run.json.as_deref(), &queue::run(&run).await?)
}

async fn quality(run: Quality) -> anyhow::Result<()> {
    let report = quality::run(&run).await?;
    finish(run.json.as_deref(), &report)?;
    anyhow::ensure!(report.missed() == 0, "{} bars are missed", report.missed());
    Ok(())
}

async fn search(run: Search) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        say("this is a debug build: its figures mean little");
    }
    finish(run.json.as_deref(), &search::run(&run).await?)
}

async fn peer(peer: Peer) -> anyhow::Result<()> {
    peer.run.nice.map_or(Ok(()), placement::rank)?;
    let upstream = UpstreamProcess::start(peer.upstream_listen).await?;
    say(&format!("the server has to answer {} from {}", peer.model, upstream.base_url()));
    let legs = vec![bed::direct(upstream.address()), bed::through(&peer.base_url, PEER, &peer.api_key, &peer.model)?];
    let scale = peer.run.scale();
    let processors = placement::allowed()?;
    let course = Course { scale, upstream, legs, server: peer.pid, database: None, processors, keeps_bytes: false };
    let mut ground = Ground::Peer(Box::new(course));
    let report = measure(&peer.run, &mut ground).await?;
    finish(peer.run.json.as_deref(), &report)
}

async fn measure(run: &Run, ground: &mut Ground) -> anyhow::Result<Report> {
    let mut report = Report::about(run);
    let (begun, before) = (Instant::now(), ground.course().spent());
    for scenario in Scenario::ALL.into_iter().filter(|scenario| run.wants(*scenario)) {
        ground.course().place(if run.no_pins { Pins::None } else { scenario.pins() })?;
        if let Some(outcome) = scenario.run(ground).await {
            say(&format!("measured: {}", scenario.about()));
            report.figures.extend(outcome?);
        }
    }
    ground.course().place(Pins::None)?;
    let foreign = ground.course().spent().since(before).foreign(begun.elapsed());
    report.notes.push(format!(
        "others used {:.0} % of the machine in these {:.0} s; {} processors",
        foreign * 100.0,
        begun.elapsed().as_secs_f64(),
        machine::processors()
    ));
    Ok(report)
}

fn finish(json: Option<&Path>, report: &Report) -> anyhow::Result<()> {
    report.print();
    json.map_or(Ok(()), |path| report.write(path))
}
