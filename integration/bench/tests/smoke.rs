//! The benchmark runs: every scenario, for a moment, against real processes. Its figures are not judged.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of a test fail it by panicking"
)]

use std::process::Command;

use serde_json::Value;

/// Figures of a run that measures everything.
const FIGURES: [&str; 13] = [
    "added latency p50, no limits",
    "added latency p99, governed",
    "CPU of a call at 8 clients, governed",
    "throughput kept when governed",
    "added time to first token p99, governed",
    "added gap per event p99, governed",
    "16 streams: stalls, governed",
    "16 streams: with missing or reordered bytes, direct",
    "memory before the first counted call",
    "memory with one tokenizer family",
    "memory 0 s after 16 streams",
    "pairs through one hot key",
    "admission p99 beside a transaction open for 0 s",
];

#[test]
fn every_scenario_runs_and_says_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let run = Command::new(env!("CARGO_BIN_EXE_ragmux-bench"))
        .args(["edge", "--scale", "moment", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let figures = results["figures"].as_array().unwrap();
    for name in FIGURES {
        let figure = figures.iter().find(|figure| figure["name"] == name);
        let figure = figure.unwrap_or_else(|| panic!("no figure {name}:\n{said}"));
        assert!(figure["value"].is_number() && figure["met"].is_boolean(), "{figure}");
        assert!(said.contains(name), "{name} is not shown:\n{said}");
    }
    // What every leg must deliver whatever the machine does meanwhile.
    let direct = figures.iter().find(|figure| figure["name"] == FIGURES[7]).unwrap();
    assert_eq!(direct["value"], 0.0, "the harness itself loses bytes:\n{said}");
}
