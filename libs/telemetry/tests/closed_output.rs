//! The reader of the log may go away at any time.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

const CHILD: &str = "RAGMUX_TEST_LOGGING_CHILD";

/// The part of the process that logs. It is this test run again as a child.
fn child() -> Result<i32, Box<dyn std::error::Error>> {
    ragmux_telemetry::init(&config::Logging::default(), "edge")?;
    tracing::info!("reader is there");
    // The parent closes its end of the pipe, then lets this go on.
    std::io::stdin().read_line(&mut String::new())?;
    for round in 0..1000 {
        tracing::warn!(round, "reader is gone");
    }
    eprintln!("still running");
    Ok(7)
}

#[test]
fn a_process_outlives_the_reader_of_its_log() {
    if std::env::var_os(CHILD).is_some() {
        std::process::exit(child().unwrap());
    }
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_outlives_the_reader_of_its_log", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("reader is there") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child ended before it logged");
    }
    let event: serde_json::Value = serde_json::from_str(line.trim_start_matches(|c| c != '{')).unwrap();
    assert_eq!((&event["service"], &event["level"]), (&"edge".into(), &"info".into()));
    drop(output);
    process.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let mut errors = String::new();
    process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(7), "{errors}");
    assert!(errors.contains("still running"), "{errors}");
}
