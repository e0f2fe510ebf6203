//! What can go wrong before anything runs, each in one sentence.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};

use crate::lab::Lab;

#[test]
fn a_stopped_installation_has_a_status_and_makes_nothing() {
    let lab = Lab::new();
    let status = lab.status();
    assert_eq!(status["state"], "stopped");
    assert_eq!(status["services"].as_array().unwrap().len(), 0);
    for member in ["edge_url", "admin_url", "admin_grpc", "upstream_url", "database_url", "project_key", "store_id"] {
        assert!(status[member].is_null(), "{member}");
    }
    let words = String::from_utf8(lab.run(&["status"]).stdout).unwrap();
    assert!(words.contains("nothing in") && words.contains("start it with `ragmux`"), "{words}");
    let down = lab.run(&["down"]);
    assert!(down.status.success() && String::from_utf8_lossy(&down.stdout).contains("nothing runs in"), "{down:?}");
    assert!(lab.run(&["reset", "--yes"]).status.success());
    assert!(!lab.state_dir().exists());
}

#[test]
fn what_is_not_understood_is_refused_with_the_usage() {
    let lab = Lab::new();
    for arguments in [&["--sample"][..], &["start"], &["up", "--upstream", "ollama"], &["status", "--yes"]] {
        let output = lab.run(arguments);
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {words}");
        assert!(words.contains("--help"), "{words}");
    }
    assert!(!lab.state_dir().exists());
}

#[test]
fn a_used_port_is_named_with_its_service() {
    let lab = Lab::new();
    let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, lab.base + 1)).unwrap();
    let words = lab.refused(&["up"]);
    assert!(words.contains(&format!("port {} ", lab.base + 1)), "{words}");
    assert!(words.contains("edge") && words.contains("--port-base"), "{words}");
    assert_eq!(lab.status()["state"], "stopped");
}

#[test]
fn a_second_copy_names_the_first() {
    let lab = Lab::new();
    fs::create_dir(lab.state_dir()).unwrap();
    let mut lock = File::create(lab.state_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    // The process that holds it is this one, which no test may end.
    write!(lock, "{}", std::process::id()).unwrap();
    let this = format!("process {}", std::process::id());
    let words = lab.refused(&["up"]);
    assert!(words.contains(&this) && words.contains("ragmux status"), "{words}");
    let words = lab.refused(&["reset", "--yes"]);
    assert!(words.contains(&this) && words.contains("ragmux down"), "{words}");
    assert_eq!(lab.status()["state"], "starting");
    // So that what cleans up after the test finds nobody to stop.
    drop(lock);
}

#[test]
fn a_state_folder_that_cannot_be_made_is_named() {
    let lab = Lab::new();
    fs::write(lab.state_dir(), "a file").unwrap();
    let words = lab.refused(&["up"]);
    assert!(words.contains("the state folder") && words.contains("cannot be made"), "{words}");
    fs::remove_file(lab.state_dir()).unwrap();
}

#[test]
fn a_database_that_cannot_be_reached_is_named_without_its_password() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let lab = Lab::new().with("DATABASE_URL", &format!("postgres://u:hunter2-hunter2@127.0.0.1:{port}/x"));
    let words = lab.refused(&["up"]);
    assert!(words.contains(&format!("127.0.0.1:{port}")) && words.contains("cannot be reached"), "{words}");
    assert!(!words.contains("hunter2"), "{words}");
    let lab = Lab::new().with("DATABASE_URL", "mysql://x");
    assert!(lab.refused(&["up"]).contains("DATABASE_URL: expected postgres://"));
}

#[test]
fn nothing_is_removed_without_being_meant() {
    let lab = Lab::new();
    fs::create_dir(lab.state_dir()).unwrap();
    fs::write(lab.state_dir().join("notes"), "not of an installation").unwrap();
    assert!(lab.run(&["reset"]).status.success());
    assert!(lab.state_dir().join("notes").exists());
    fs::remove_file(lab.state_dir().join("notes")).unwrap();
    fs::write(lab.state_dir().join("lock"), "").unwrap();
    let words = lab.refused(&["reset"]);
    assert!(words.contains("--yes"), "{words}");
    assert!(lab.state_dir().exists());
    assert!(lab.run(&["reset", "--yes"]).status.success());
    assert!(!lab.state_dir().exists());
}
