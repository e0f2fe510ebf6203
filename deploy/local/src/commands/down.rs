//! `ragmux down`: stop the running copy from another terminal.

use std::time::Duration;

use anyhow::{Context as _, bail};
use pgserver::Cluster;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::state_dir::StateDir;
use crate::terminal::say;

/// The budgets of all stops in a row, and some more.
const DEADLINE: Duration = Duration::from_secs(330);

/// Somebody who has only just taken the lock signs it in a moment.
const SIGNING: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(50);

/// Asks the copy that holds the lock to stop, and waits until it is gone.
pub(crate) async fn run(dir: &StateDir) -> anyhow::Result<()> {
    let place = dir.path().display();
    let began = Instant::now();
    let mut told = None;
    while let Some(holder) = dir.holder()? {
        match holder.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
            Some(pid) if told.is_none() => {
                say(&format!("stopping the copy in {place} (process {pid})"));
                kill_process(pid, Signal::TERM).with_context(|| format!("process {pid} cannot be told to stop"))?;
                told = Some(pid);
            }
            None if began.elapsed() > SIGNING => {
                bail!("a copy runs in {place}, but it does not say which process it is")
            }
            Some(_) | None => {}
        }
        if began.elapsed() > DEADLINE {
            bail!("the copy in {place} has not stopped after {} s", DEADLINE.as_secs());
        }
        sleep(PAUSE).await;
    }
    if told.is_some() {
        say("stopped");
    } else if dir.exists() && Cluster::stop_orphan(&database_folder(dir)).await? {
        say(&format!("stopped the database that a killed copy in {place} had left running"));
    } else {
        say(&format!("nothing runs in {place}"));
    }
    Ok(())
}

/// Where [`pgserver::Home`] puts the cluster, or links to it, without making anything.
fn database_folder(dir: &StateDir) -> std::path::PathBuf {
    dir.path().join("postgres")
}
