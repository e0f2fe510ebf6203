//! The whole product, started, killed, stopped and taken away.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::RoleName;

use crate::lab::{Lab, is_running, pids, until};

const QUESTION: &str = "The display shows E47. What should I do?";

/// A call of the project's edge: status, passages that were used, sources, and body.
async fn ask(status: &Value, key: &str, stream: bool) -> (u16, String, String, String) {
    let http = client();
    let url = format!("{}/v1/chat/completions", status["edge_url"].as_str().unwrap());
    let body = json!({
        "model": "demo-chat",
        "stream": stream,
        "messages": [{ "role": "user", "content": QUESTION }],
    });
    let answer = http.post(url).bearer_auth(key).json(&body).send().await.unwrap();
    let header = |name: &str| {
        let value = answer.headers().get(name);
        value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    };
    let (hits, sources) = (header("x-ragmux-rag-hits"), header("x-ragmux-rag-sources"));
    (answer.status().as_u16(), hits, sources, answer.text().await.unwrap())
}

fn client() -> reqwest::Client {
    // An error says that another test has installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn key(status: &Value) -> String {
    status["project_key"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_start_that_was_killed_is_completed_by_the_next_and_the_data_stays() {
    let lab = Lab::new();
    let mut first = lab.start(&["up"]);
    first.until_says("sample documents");
    let started = pids(&lab.status());
    assert_eq!(started.len(), 5, "{}", first.output());
    first.signal(Signal::KILL);
    assert_eq!(first.ended(), None);
    // The services end by themselves; the guard stops the database after them.
    until("the end of what the killed launcher had started", || !started.iter().any(|pid| is_running(*pid)));
    assert_eq!(lab.status()["state"], "stopped");

    let mut second = lab.start(&["up"]);
    let status = second.ready();
    let output = second.output();
    assert!(output.contains("aurora-7-service-manual.pdf: ready"), "{output}");
    assert!(output.contains(&key(&status)) && output.contains("curl -N"), "{output}");
    let (code, hits, sources, body) = ask(&status, &key(&status), true).await;
    assert_eq!(code, 200, "{body}");
    assert!(hits.parse::<u32>().unwrap() > 0 && sources.contains("aurora-7-service-manual.pdf"), "{hits} {sources}");
    assert!(body.matches("data: {").count() > 5 && body.trim_end().ends_with("data: [DONE]"), "{body}");
    second.signal(Signal::INT);
    assert_eq!(second.ended(), Some(0));
    assert!(!pids(&status).into_iter().any(is_running));
    assert_eq!(lab.status()["project_key"], status["project_key"]);

    let mut third = lab.start(&["up"]);
    let again = third.ready();
    assert_eq!((&again["project_key"], &again["store_id"]), (&status["project_key"], &status["store_id"]));
    assert!(!third.output().contains("sample documents"), "{}", third.output());
    let (code, _, _, body) = ask(&again, &key(&again), false).await;
    assert!(code == 200 && body.contains("felt filter"), "{code} {body}");
    assert!(lab.run(&["down"]).status.success());
    assert_eq!(third.ended(), Some(0));
    assert!(lab.run(&["reset", "--yes"]).status.success());
    assert!(!lab.state_dir().exists());
}

#[test]
fn a_start_can_be_broken_off_at_any_moment() {
    let lab = Lab::new();
    for moment in ["creating the database", "starting edge", "making the project"] {
        let mut launcher = lab.start(&["up", "--no-sample"]);
        launcher.until_says(moment);
        let started = pids(&lab.status());
        launcher.signal(Signal::INT);
        assert_eq!(launcher.ended(), Some(0), "{moment}");
        assert!(!started.into_iter().any(is_running), "{moment}");
        assert_eq!(lab.status()["state"], "stopped");
    }
    let mut launcher = lab.start(&["up", "--no-sample"]);
    assert!(!key(&launcher.ready()).is_empty());
    launcher.signal(Signal::INT);
    assert_eq!(launcher.ended(), Some(0));
}

#[tokio::test]
async fn two_installations_run_side_by_side_and_a_service_that_dies_is_started_again() {
    let (one, other) = (Lab::new(), Lab::new());
    let (mut first, mut second) = (one.start(&["up", "--no-sample"]), other.start(&["--no-sample"]));
    let (status, others) = (first.ready(), second.ready());
    assert_ne!(key(&status), key(&others));
    assert_eq!(ask(&status, &key(&others), false).await.0, 401);
    let (code, hits, _, body) = ask(&status, &key(&status), false).await;
    assert_eq!((code, hits.as_str()), (200, "0"), "{body}");
    let members = ["name", "pid", "listen", "log"];
    for service in status["services"].as_array().unwrap() {
        assert!(members.iter().all(|member| !service[member].is_null()), "{service}");
    }

    let of = |status: &Value| {
        let services = status["services"].as_array().unwrap().clone();
        services
            .iter()
            .find(|s| s["name"] == "edge")
            .and_then(|s| s["pid"].as_i64())
            .map(|pid| i32::try_from(pid).unwrap())
    };
    let edge = of(&status).unwrap();
    kill_process(Pid::from_raw(edge).unwrap(), Signal::KILL).unwrap();
    first.until_says("edge ended by itself");
    until("another edge", || of(&one.status()).is_some_and(|pid| pid != edge));
    let url = format!("{}/readyz", status["edge_url"].as_str().unwrap());
    testkit::until("it is ready", async || Ok(client().get(&url).send().await.is_ok_and(|a| a.status() == 200)))
        .await
        .unwrap();

    // A second signal hurries.
    first.signal(Signal::TERM);
    first.signal(Signal::INT);
    assert_eq!(first.ended(), Some(0));
    assert_eq!(ask(&others, &key(&others), false).await.0, 200);
    second.signal(Signal::HUP);
    assert_eq!(second.ended(), Some(0));
    assert!(!pids(&status).into_iter().chain(pids(&others)).any(is_running));
}

#[tokio::test]
async fn a_database_of_the_environment_is_used_and_left_running() {
    let database = testkit::unmigrated_database().await.unwrap();
    let lab = Lab::new().with("DATABASE_URL", database.url(RoleName::Owner).expose());
    let mut launcher = lab.start(&["up", "--no-sample"]);
    let status = launcher.ready();
    assert_eq!(status["database_url"], database.url(RoleName::Owner).expose());
    assert!(!status["services"].as_array().unwrap().iter().any(|service| service["name"] == "database"));
    assert_eq!(ask(&status, &key(&status), false).await.0, 200);
    launcher.signal(Signal::INT);
    assert_eq!(launcher.ended(), Some(0));
    assert!(database.superuser_pool().await.is_ok());
    assert!(!lab.state_dir().join("postgres").exists());
}
