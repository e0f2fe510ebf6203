//! What operators do meanwhile.

use std::path::PathBuf;

use anyhow::Context;
use testkit::{LedgerWatch, RoleName};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::scale::Scale;
use super::scene::Scene;

/// Dumps and index builds that run beside the calls.
pub(super) struct Beside {
    watch: LedgerWatch,
    pg_dump: PathBuf,
    url: String,
    folder: PathBuf,
    running: JoinSet<anyhow::Result<()>>,
}

impl Beside {
    pub(super) fn new(scene: &Scene) -> Self {
        Self {
            watch: scene.watch.clone(),
            pg_dump: scene.server.program("pg_dump"),
            url: scene.stack.database.url(RoleName::Owner).expose().to_owned(),
            folder: scene.stack.folder().to_owned(),
            running: JoinSet::new(),
        }
    }

    /// Starts what is due beside a round.
    pub(super) async fn begin(&mut self, scale: &Scale, round: usize) -> anyhow::Result<()> {
        while let Some(done) = self.running.try_join_next() {
            done??;
        }
        let watch = self.watch.clone();
        if round % scale.dumps_every() == 3 {
            let dump = self.folder.join(format!("{round}.dump"));
            let mut command = Command::new(&self.pg_dump);
            command.arg("--format=custom").arg("--file").arg(dump).arg("--dbname").arg(&self.url).kill_on_drop(true);
            self.running.spawn(async move {
                let done = command.output().await.context("pg_dump cannot be started")?;
                anyhow::ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                Ok(())
            });
        }
        if round % (2 * scale.dumps_every()) == 5 {
            self.running.spawn(async move { watch.build_index(&format!("built_in_round_{round}"), false).await });
        } else if round == scale.rounds / 3 {
            // It waits for the transaction that is open from the first round to the last, and so does not end before.
            self.running.spawn(async move { watch.build_index("built_meanwhile", true).await });
        }
        Ok(())
    }

    /// Waits for all of it.
    pub(super) async fn finish(mut self) -> anyhow::Result<()> {
        let all = async {
            while let Some(done) = self.running.join_next().await {
                done??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(testkit::DEADLINE, all).await.context("a dump or an index build does not end")?
    }
}
