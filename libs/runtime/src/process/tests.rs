//! A `main` can only be tried in a process of its own, so each of these tests runs itself again as that process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use axum::Router;
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::{Health, Limits, Listener, Stages};

const CHILD: &str = "RAGMUX_TEST_PROCESS";
const SERVICE: Service = Service { name: "edge", version: "1.2.3" };

struct Example {
    logging: Logging,
    listen: SocketAddr,
}

impl Settings for Example {
    fn read(env: &mut Env) -> Self {
        env.number("TRIES", 1_u32, 1..=9);
        let listen = env.listen("LISTEN", ([127, 0, 0, 1], 0));
        Self { logging: Logging::read(env), listen }
    }

    fn logging(&self) -> &Logging {
        &self.logging
    }

    fn health_address(&self) -> SocketAddr {
        self.listen
    }
}

/// Runs the named test as a child that goes into `run`; in the child itself this does not return.
fn itself<F>(test: &str, arguments: &[&str], run: impl FnOnce(Process, Example) -> F) -> Command
where
    F: Future<Output = anyhow::Result<()>>,
{
    if std::env::var_os(CHILD).is_some() {
        let arguments = std::env::var("ARGUMENTS").unwrap_or_default();
        let code = code_of_main(SERVICE, arguments.split_whitespace().map(OsString::from), run);
        std::process::exit(code.into());
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&format!("process::tests::{test}"), "--exact", "--nocapture", "--quiet"])
        .env(CHILD, "1")
        .env("ARGUMENTS", arguments.join(" "))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn outcome(output: Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

async fn nothing(_: Process, _: Example) -> anyhow::Result<()> {
    Ok(())
}

/// A running child and its log.
struct Running {
    child: Child,
    log: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stdout.take().unwrap());
        Self { child, log }
    }

    /// The first event from here on that has this message.
    fn wait_for(&mut self, message: &str) -> serde_json::Value {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "ended without {message:?}");
            let event = line.find('{').and_then(|start| serde_json::from_str::<serde_json::Value>(&line[start..]).ok());
            match event {
                Some(event) if event["message"] == message => return event,
                _ => {}
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), errors)
    }
}

#[test]
fn settings_that_are_wrong_are_all_reported_and_the_code_is_2() {
    let mut command = itself("settings_that_are_wrong_are_all_reported_and_the_code_is_2", &[], nothing);
    let output = command.env("TRIES", "0").env("LOG_LEVEL", "loud").output().unwrap();
    let (code, errors) = outcome(output);
    assert_eq!(code, Some(2));
    assert!(errors.starts_with("edge: 2 settings are wrong:\n  TRIES is \"0\": "), "{errors}");
    assert!(errors.contains("\n  LOG_LEVEL is \"loud\": "), "{errors}");
}

#[test]
fn a_service_that_fails_says_why_in_one_sentence() {
    let fail = async |_, _| Err(anyhow::anyhow!("no route to host").context("the database is not available"));
    let mut command = itself("a_service_that_fails_says_why_in_one_sentence", &[], fail);
    let (code, errors) = outcome(command.output().unwrap());
    assert_eq!((code, errors.as_str()), (Some(1), "edge: the database is not available: no route to host\n"));
}

#[test]
fn arguments_that_are_not_known_are_refused() {
    let mut command = itself("arguments_that_are_not_known_are_refused", &["--port", "80"], nothing);
    let (code, errors) = outcome(command.output().unwrap());
    assert_eq!(code, Some(2));
    assert!(errors.contains("its settings come from the environment"), "{errors}");
}

#[test]
fn a_version_can_be_asked_for() {
    let mut command = itself("a_version_can_be_asked_for", &["--version"], nothing);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("edge 1.2.3\n"));
}

#[test]
fn a_panic_is_logged_without_what_it_says() {
    let panics = async |_, _| {
        let _ = tokio::spawn(async { panic!("quotes the document") }).await;
        Ok(())
    };
    let mut command = itself("a_panic_is_logged_without_what_it_says", &[], panics);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let log = String::from_utf8(output.stdout).unwrap();
    assert!(log.contains("a task panicked") && log.contains("process/tests.rs:"), "{log}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!log.contains("document") && !errors.contains("document"), "{log}{errors}");
}

/// Serves the probes until it is told to stop; its drain waits for its deadline.
async fn serve(process: Process, settings: Example) -> anyhow::Result<()> {
    let health = Health::new(1);
    let listener = Listener::bind("edge http", settings.listen).await?;
    let serving = listener.serve(Router::new().merge(health.http_probes()), Limits::default());
    process.stop.begun().await;
    let mut stages = Stages::new();
    stages.push("wait", Duration::from_secs(600), |deadline| async move {
        tracing::info!("waiting");
        deadline.reached().await;
    });
    stages.push_settling("settle", Duration::from_secs(10), |_| async { tracing::info!("settled") });
    stages.push("close", Duration::from_secs(10), |_| serving.close());
    stages.run(process.stop.hurry()).await;
    Ok(())
}

#[test]
fn a_signal_begins_the_end_and_a_second_one_hurries_it() {
    let mut process = Running::start(itself("a_signal_begins_the_end_and_a_second_one_hurries_it", &[], serve));
    process.wait_for("listening");
    process.signal(Signal::TERM);
    assert_eq!(process.wait_for("told to stop")["signal"], "SIGTERM");
    process.wait_for("waiting");
    process.signal(Signal::INT);
    assert_eq!(process.wait_for("shutdown stage reached its deadline")["stage"], "wait");
    process.wait_for("settled");
    assert_eq!(process.wait_for("shutdown stage done")["stage"], "settle");
    process.wait_for("stopped");
    assert_eq!(process.end(), (Some(0), String::new()));
}

#[test]
fn a_healthcheck_asks_the_listener_of_the_same_settings() {
    let name = "a_healthcheck_asks_the_listener_of_the_same_settings";
    let mut process = Running::start(itself(name, &[], serve));
    let address = process.wait_for("listening")["address"].as_str().unwrap().to_owned();
    let ask = || outcome(itself(name, &["--healthcheck"], serve).env("LISTEN", &address).output().unwrap());
    assert_eq!(ask(), (Some(0), String::new()));
    process.signal(Signal::TERM);
    process.wait_for("waiting");
    process.signal(Signal::TERM);
    assert_eq!(process.end().0, Some(0));
    let (code, errors) = ask();
    assert_eq!(code, Some(1));
    assert!(errors.starts_with(&format!("edge: {address} does not answer: ")), "{errors}");
}
