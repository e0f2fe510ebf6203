//! The benchmark runs: every scenario, for a moment, against real processes. Its figures are not judged.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of a test fail it by panicking"
)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Figures of a run that measures everything.
const FIGURES: [&str; 13] = [
    "added latency p50, no limits",
    "added latency p99, governed",
    "CPU of a call at 8 clients, governed",
    "throughput kept when governed",
    "added time to first token p99, governed, one stream",
    "added gap per event p99, governed, 16 streams",
    "16 streams: stalls, governed",
    "16 streams: with missing or reordered bytes, direct",
    "memory before the first counted call",
    "memory with one tokenizer family",
    "memory 0 s after 16 streams",
    "pairs through one hot key",
    "admission p99 beside a transaction open for 0 s",
];

/// Runs the benchmark for a moment: its figures, and what it said.
fn figures(arguments: &[&str]) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let run = Command::new(env!("CARGO_BIN_EXE_ragmux-bench"))
        .args(arguments)
        .args(["--scale", "moment", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    (results["figures"].as_array().unwrap().clone(), said)
}

fn value<'a>(figures: &'a [Value], name: &str) -> &'a Value {
    figures.iter().find(|figure| figure["name"] == name).map_or(&Value::Null, |figure| &figure["value"])
}

#[test]
fn the_queue_is_measured_too() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let small = ["--finished", "1000", "--documents", "100", "--stores", "10", "--open-transaction", "1"];
    let run =
        Command::new(env!("CARGO_BIN_EXE_ragmux-bench")).arg("queue").args(small).arg("--json").arg(&json).output();
    let run = run.unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let figures = results["figures"].as_array().unwrap();
    for name in ["claim and finish", "claim p99", "claim p99 beside a transaction open for 1 s"] {
        assert!(value(figures, name).as_f64().unwrap() > 0.0, "{said}");
    }
}

/// A store that is large by what the run calls large: its own table, its index and the filter are gone through.
#[test]
fn a_large_store_is_searched_and_little_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let small = ["--chunks", "3000", "--queries", "10", "--exact-rows", "1500"];
    let run =
        Command::new(env!("CARGO_BIN_EXE_ragmux-bench")).arg("search").args(small).arg("--json").arg(&json).output();
    let run = run.unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}");
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let figures = results["figures"].as_array().unwrap();
    for (name, exhaustive) in [
        ("recall@10, small store beside the large one", 1.0),
        ("recall@10, filter that leaves 1 % of the large store", 1.0),
        ("recall@10, large store", 0.0),
    ] {
        assert!(value(figures, name).as_f64().unwrap() >= 0.98, "{said}");
        let figure = figures.iter().find(|figure| figure["name"] == name).unwrap();
        assert_eq!(figure["details"]["exhaustive"]["value"], exhaustive, "{figure}");
    }
    assert!(value(figures, "retrieval p95, large store, embeddings cached").as_f64().unwrap() > 0.0, "{said}");
}

#[test]
fn every_scenario_runs_and_says_its_figures() {
    let (figures, said) = figures(&["edge"]);
    for name in FIGURES {
        assert!(value(&figures, name).is_number(), "no figure {name}:\n{said}");
        assert!(said.contains(name), "{name} is not shown:\n{said}");
    }
    let lost = value(&figures, "16 streams: with missing or reordered bytes, direct");
    assert_eq!(lost, 0.0, "the harness itself loses bytes:\n{said}");
}

#[test]
fn any_other_server_is_measured_on_the_same_work() {
    let mut other = Command::new(env!("CARGO_BIN_EXE_ragmux-bench"))
        .args(["upstream", "--listen", "127.0.0.1:0", "--with-parent"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = format!("http://{}/v1", line.trim().rsplit_once(' ').unwrap().1);
    let pid = other.id().to_string();
    // The server that is measured has an answer of its own; nothing of it comes from the upstream of the run.
    let script = r#"{"path":"*","default":{"content":"of its own"}}"#;
    post(&url.replace("/v1", "/script"), script);
    let arguments = ["peer", "--base-url", &url, "--model", "any", "--pid", &pid, "--upstream-listen", "127.0.0.1:0"];
    let (figures, said) = figures(&[&arguments[..], &["--only", "latency,cpu,throughput"]].concat());
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    for name in ["added latency p99, through", "CPU of a call at 8 clients, through", "calls at 64 clients, through"] {
        assert!(value(&figures, name).is_number(), "no figure {name}:\n{said}");
    }
    assert!(!said.contains("governed"), "{said}");
}

/// Sends a body and expects 200.
fn post(url: &str, body: &str) {
    use std::io::{Read as _, Write as _};
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "POST /{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
