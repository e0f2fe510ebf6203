//! A cluster of this process, with the real server.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod lab;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use lab::{Lab, eventually, is_alive, psql};
use ragmux_pgserver::{Cluster, ClusterOptions, PgServerError};
use rustix::process::{Pid, Signal, kill_process};

#[tokio::test]
async fn data_survives_a_stop_and_a_second_start() {
    let Some(lab) = Lab::open().await else { return };
    let cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::default()).await.unwrap();
    let url = cluster.url().clone();
    lab.query(url.expose(), "create extension vector; create table t as select '[1,2]'::vector(2) as v");
    assert_eq!(lab.query(url.expose(), "show fsync"), "on");
    assert_eq!(lab.query(url.expose(), "show server_encoding"), "UTF8");
    assert_eq!(lab.query(url.expose(), "show listen_addresses"), "127.0.0.1");
    let pid = cluster.pid();
    cluster.stop().await.unwrap();
    assert!(!is_alive(pid));

    let again = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::default()).await.unwrap();
    assert_eq!(lab.query(again.url().expose(), "select v from t"), "[1,2]");
    again.stop().await.unwrap();
    lab.finish().await;
}

#[tokio::test]
async fn a_throwaway_cluster_is_not_durable_and_takes_many_connections() {
    let Some(lab) = Lab::open().await else { return };
    let cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap();
    let shown = |name| lab.query(cluster.url().expose(), &format!("show {name}"));
    assert_eq!(shown("fsync"), "off");
    assert_eq!(shown("full_page_writes"), "off");
    assert_eq!(shown("synchronous_commit"), "off");
    assert_eq!(shown("max_connections"), "400");
    cluster.stop().await.unwrap();
    lab.finish().await;
}

#[tokio::test]
async fn the_password_is_needed_and_only_its_owner_can_read_it() {
    let Some(lab) = Lab::open().await else { return };
    let cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap();
    let file = lab.dir().join("password");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let password = std::fs::read_to_string(file).unwrap();
    let shown = format!("{cluster:?}");
    assert!(!shown.contains(&password), "Debug shows the password");
    let wrong = cluster.url().expose().replace(&password, "wrong");
    let refused = psql(&lab.installation.program("psql"), &wrong, "select 1");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("password authentication failed"), "{words}");
    cluster.stop().await.unwrap();
    lab.finish().await;
}

#[tokio::test]
async fn a_server_that_was_killed_outright_starts_again_with_its_data() {
    let Some(lab) = Lab::open().await else { return };
    let mut cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::default()).await.unwrap();
    lab.query(cluster.url().expose(), "create table t as select 7 as n");
    let pid = Pid::from_raw(cluster.pid().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    cluster.ended().await.unwrap();
    assert!(lab.dir().join("data/postmaster.pid").is_file(), "the stale file is what this test is about");
    drop(cluster);

    let again = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::default()).await.unwrap();
    assert_eq!(lab.query(again.url().expose(), "select n from t"), "7");
    again.stop().await.unwrap();
    lab.finish().await;
}

#[tokio::test]
async fn a_used_port_is_one_sentence_and_leaves_nothing_behind() {
    let Some(lab) = Lab::open().await else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut options = ClusterOptions::for_tests();
    options.port = Some(port);
    let error = Cluster::open(&lab.installation, lab.dir(), options.clone()).await.unwrap_err();
    assert!(matches!(error, PgServerError::PortInUse { port: named } if named == port), "{error}");
    assert!(error.to_string().contains(&port.to_string()));

    drop(taken);
    let cluster = Cluster::open(&lab.installation, lab.dir(), options).await.unwrap();
    assert_eq!(cluster.port(), port);
    cluster.stop().await.unwrap();
    lab.finish().await;
}

#[tokio::test]
async fn a_second_copy_beside_a_running_one_is_told_which_process_it_is() {
    let Some(lab) = Lab::open().await else { return };
    let cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap();
    let error = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap_err();
    let own = std::process::id().to_string();
    assert!(matches!(&error, PgServerError::AlreadyRunning { owner, .. } if *owner == own), "{error}");
    assert_eq!(lab.query(cluster.url().expose(), "select 1"), "1");
    cluster.stop().await.unwrap();
    lab.finish().await;
}

#[tokio::test]
async fn a_dropped_cluster_stops_by_itself() {
    let Some(lab) = Lab::open().await else { return };
    let cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap();
    let pid = cluster.pid();
    drop(cluster);
    eventually("the dropped server is gone", || !is_alive(pid)).await;
    lab.finish().await;
}

#[tokio::test]
async fn a_start_that_cannot_succeed_ends_with_the_servers_last_words() {
    let Some(lab) = Lab::open().await else { return };
    let cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap();
    cluster.stop().await.unwrap();
    std::fs::write(lab.dir().join("data/postgresql.conf"), "no_such_setting = 1\n").unwrap();
    let error = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap_err();
    let sentence = error.to_string();
    assert!(matches!(error, PgServerError::StartFailed { .. }), "{sentence}");
    assert!(sentence.contains("contains errors") && sentence.contains("postgres.log"), "{sentence}");
    lab.finish().await;
}

#[tokio::test]
async fn data_without_its_password_is_not_touched() {
    let Some(lab) = Lab::open().await else { return };
    let cluster = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap();
    cluster.stop().await.unwrap();
    std::fs::remove_file(lab.dir().join("password")).unwrap();
    let error = Cluster::open(&lab.installation, lab.dir(), ClusterOptions::for_tests()).await.unwrap_err();
    assert!(matches!(error, PgServerError::PasswordMissing { .. }), "{error}");
    assert!(lab.dir().join("data/PG_VERSION").is_file());
    lab.finish().await;
}
