//! Child processes that are started again when they die, and stopped in order.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::guard::Guard;
use crate::parent;
use crate::programs::{OWN_PROGRAM, Program};
use crate::status::{Board, Running};
use crate::terminal::say;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whoever ran this long is not in a crash loop.
const STEADY: Duration = Duration::from_secs(60);

/// What is left of a stop's budget when it is hurried.
const HURRIED: Duration = Duration::from_secs(15);

/// How often a program may die while everything is starting before that is given up.
const DEATHS_BEFORE_READY: u32 = 3;

/// A first start on a slow machine.
const READY_DEADLINE: Duration = Duration::from_secs(180);

const READY_PAUSE: Duration = Duration::from_millis(100);

/// One answer of a process about its readiness.
const ANSWER: Duration = Duration::from_secs(5);

/// The last lines of a log that are read for the reason of a death.
const TAIL_BYTES: u64 = 8 * 1024;

/// What is wanted of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Run,
    Stop,
    Hurry,
}

/// A program that is kept running.
pub(crate) struct Kept {
    name: &'static str,
    ready_url: String,
    log: PathBuf,
    order: watch::Sender<Order>,
    deaths: watch::Receiver<u32>,
    task: JoinHandle<()>,
}

/// Starts a program and keeps it running. Must be called on the main thread: the kernel takes the end of the thread that
/// starts a process for the end of its parent.
pub(crate) fn keep(program: Program, log: &Path, guard: Option<&Guard>, board: Board) -> anyhow::Result<Kept> {
    if log.exists() {
        // The log before is of use once, after a crash.
        fs::rename(log, log.with_extension("log.old")).with_context(|| format!("{} cannot be moved", log.display()))?;
    }
    let (order, orders) = watch::channel(Order::Run);
    let (count, deaths) = watch::channel(0);
    let line = guard.map(Guard::line_end).transpose()?;
    let (name, ready_url) = (program.name, program.ready_url.clone());
    let keeper = Keeper { program, log: log.to_owned(), line, board, orders, deaths: count };
    Ok(Kept { name, ready_url, log: log.to_owned(), order, deaths, task: tokio::spawn(keeper.run()) })
}

impl Kept {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Waits until the program says that it may get work.
    ///
    /// # Errors
    ///
    /// One sentence with its last words when it dies again and again, or is not ready in time.
    pub(crate) async fn ready(&self, http: &reqwest::Client) -> anyhow::Result<()> {
        let give_up = Instant::now() + READY_DEADLINE;
        let mut answer = "it does not answer".to_owned();
        loop {
            match http.get(&self.ready_url).timeout(ANSWER).send().await {
                Ok(response) if response.status().is_success() => return Ok(()),
                Ok(response) => answer = format!("it says {}", response.text().await.unwrap_or_default().trim()),
                Err(_) => {}
            }
            if *self.deaths.borrow() >= DEATHS_BEFORE_READY {
                bail!("{} does not start: {} (log: {})", self.name, last_words(&self.log), self.log.display());
            }
            if Instant::now() >= give_up {
                let seconds = READY_DEADLINE.as_secs();
                bail!("{} was not ready after {seconds} s: {answer} (log: {})", self.name, self.log.display());
            }
            sleep(READY_PAUSE).await;
        }
    }

    /// What makes a stop that is under way, or to come, a quick one.
    pub(crate) fn hurrier(&self) -> impl Fn() + use<> {
        let order = self.order.clone();
        move || {
            order.send_replace(Order::Hurry);
        }
    }

    /// Stops the program and waits for its end.
    pub(crate) async fn stop(&mut self) {
        self.order.send_if_modified(|order| {
            let is_new = *order == Order::Run;
            *order = (*order).max(Order::Stop);
            is_new
        });
        // It ends within the program's budget and a kill, and does not panic.
        let _ = (&mut self.task).await;
    }
}

/// The task behind one kept program.
struct Keeper {
    program: Program,
    log: PathBuf,
    line: Option<std::io::PipeWriter>,
    board: Board,
    orders: watch::Receiver<Order>,
    deaths: watch::Sender<u32>,
}

impl Keeper {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        while *self.orders.borrow() == Order::Run {
            let began = Instant::now();
            let how = match self.spawn() {
                Ok(child) => match self.watch(child).await {
                    Some(ended) => describe(ended, &self.log),
                    None => return,
                },
                Err(error) => format!("could not be started: {error:#}"),
            };
            if began.elapsed() >= STEADY {
                pause = FIRST_PAUSE;
            }
            self.deaths.send_modify(|deaths| *deaths += 1);
            say(&format!("{} {how}; starting it again in {:.1} s", self.program.name, pause.as_secs_f32()));
            tokio::select! {
                () = sleep(pause) => {}
                () = ordered(&mut self.orders, Order::Stop) => return,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let output = open_log(&self.log)?;
        let errors = output.try_clone()?;
        let line = match &self.line {
            Some(line) => Stdio::from(line.try_clone()?),
            None => Stdio::null(),
        };
        let mut command = Command::new(OWN_PROGRAM);
        command
            .arg0("ragmux")
            .args(&self.program.arguments)
            .env_clear()
            .envs(&self.program.env)
            .env(parent::KEY, std::process::id().to_string())
            .stdin(line)
            .stdout(output)
            .stderr(errors)
            // Ctrl-C in the terminal is for the launcher, which stops its children in order.
            .process_group(0)
            .kill_on_drop(true);
        Ok(command.spawn()?)
    }

    /// Waits until the child has ended: by itself, or because that was ordered (`None`).
    async fn watch(&mut self, mut child: Child) -> Option<std::io::Result<ExitStatus>> {
        let name = self.program.name;
        let pid = child.id().unwrap_or_default();
        let listen = self.program.listen.clone();
        self.board.started(Running { name: name.to_owned(), pid, listen, log: self.log.clone() });
        let ended = tokio::select! {
            ended = child.wait() => Some(ended),
            () = ordered(&mut self.orders, Order::Stop) => {
                self.stop(child).await;
                None
            }
        };
        self.board.ended(name);
        ended
    }

    async fn stop(&mut self, mut child: Child) {
        tell(&child);
        let budget = self.program.stop_budget;
        let in_time = async {
            tokio::select! {
                ended = timeout(budget, child.wait()) => ended.is_ok(),
                () = ordered(&mut self.orders, Order::Hurry) => false,
            }
        };
        if in_time.await {
            return;
        }
        if *self.orders.borrow() == Order::Hurry {
            tell(&child);
            if timeout(HURRIED.min(budget), child.wait()).await.is_ok() {
                return;
            }
        }
        say(&format!("{} does not stop and is killed", self.program.name));
        // An error says that it is gone already.
        let _ = child.kill().await;
    }
}

/// Waits until at least that much is ordered. Nobody to give orders any more means to stop.
async fn ordered(orders: &mut watch::Receiver<Order>, least: Order) {
    let _ = orders.wait_for(|order| *order >= least).await;
}

/// Asks a child to stop, or, the second time, to be quick about it.
fn tell(child: &Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
        // An error says that it is gone already; until it was waited for, its id is nobody else's.
        let _ = kill_process(pid, Signal::TERM);
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.with_context(|| format!("{} cannot be opened", path.display()))
}

fn describe(ended: std::io::Result<ExitStatus>, log: &Path) -> String {
    match ended {
        Ok(status) => format!("ended by itself ({status}: {})", last_words(log)),
        Err(error) => format!("is lost ({error})"),
    }
}

/// The last line of a log: a sentence for people, or what a log event says.
fn last_words(log: &Path) -> String {
    let mut text = String::new();
    let read = File::open(log).and_then(|mut file| {
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(())
    });
    match (read, text.lines().rev().find(|line| !line.trim().is_empty())) {
        (Ok(()), Some(line)) => plain(line),
        _ => "it said nothing".to_owned(),
    }
}

fn plain(line: &str) -> String {
    let Ok(event) = serde_json::from_str::<serde_json::Value>(line) else { return line.trim().to_owned() };
    let member = |name: &str| event.get(name).and_then(serde_json::Value::as_str);
    match (member("message"), member("error")) {
        (Some(message), Some(error)) => format!("{message}: {error}"),
        (Some(message), None) => message.to_owned(),
        _ => line.trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("x.log");
        assert_eq!(last_words(&log), "it said nothing");
        fs::write(&log, "{\"level\":\"info\",\"message\":\"starting\"}\nedge: no key\n\n").unwrap();
        assert_eq!(last_words(&log), "edge: no key");
        fs::write(&log, "{\"message\":\"lost\",\"error\":\"gone\"}\n").unwrap();
        assert_eq!(last_words(&log), "lost: gone");
        fs::write(&log, "x".repeat(20_000)).unwrap();
        assert_eq!(last_words(&log).len(), 8 * 1024);
    }
}
