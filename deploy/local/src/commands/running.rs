//! What a copy has started, from the first process to the end of the last.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use anyhow::Context as _;
use futures::future::try_join_all;
use tokio::time::Instant;
use vault::Vault;

use crate::children::{self, Kept};
use crate::database::{self, Server, Urls};
use crate::installation::Installation;
use crate::models::Models;
use crate::ports::Ports;
use crate::programs::Plan;
use crate::services;
use crate::signals::Signals;
use crate::state_dir::StateDir;
use crate::status::Board;
use crate::terminal::say;

/// What has been started so far.
#[derive(Default)]
pub(crate) struct Running {
    /// The private database, unless another one is used.
    pub(crate) server: Option<Server>,
    /// In the order in which they are stopped.
    kept: Vec<Kept>,
}

impl Running {
    /// Starts the services, and the demonstration model if it is used, and waits until all of them may get work.
    /// Returns the client that asked them.
    ///
    /// # Errors
    ///
    /// One sentence about the first that does not get ready.
    pub(crate) async fn start_services(
        &mut self,
        dir: &StateDir,
        ports: Ports,
        models: Models,
        urls: &Urls,
        installation: &Installation,
        board: &Board,
    ) -> anyhow::Result<reqwest::Client> {
        let environment = std::env::vars_os().collect::<BTreeMap<_, _>>();
        let is_set = |key: &str| environment.get(OsStr::new(key)).is_some_and(|value| !value.is_empty());
        if !is_set("SECRET_KEY") && !is_set("SECRET_KEY_FILE") {
            // Made here, so that all services find the same one.
            Vault::load(None, None, dir.path())?;
        }
        let is_private = self.server.is_some();
        let plan = Plan { dir, ports, urls, is_private, installation, environment, settings: services::settings() };
        let mut programs = vec![plan.edge(), plan.worker(), plan.admin()];
        if models == Models::Demo {
            programs.push(plan.upstream());
        }
        let guard = self.server.as_ref().map(Server::guard);
        for program in programs {
            let log = dir.log(program.name);
            self.kept.push(children::keep(program, &log, guard, board.clone())?);
        }
        // What these listen on is never behind a proxy.
        let http = reqwest::Client::builder().no_proxy().build().context("no HTTP client can be made")?;
        try_join_all(self.kept.iter().map(|kept| report_ready(kept, &http))).await?;
        Ok(http)
    }

    /// Keeps the database running. The services keep themselves.
    pub(crate) async fn keep(&mut self, board: &Board) {
        match &mut self.server {
            Some(server) => server.keep(board).await,
            None => std::future::pending().await,
        }
    }

    /// Stops everything, one after another. A signal in between makes the rest quick.
    ///
    /// # Errors
    ///
    /// When the database does not stop.
    pub(crate) async fn stop(self, signals: &mut Signals, board: &Board) -> anyhow::Result<()> {
        let hurriers: Vec<_> = self.kept.iter().map(Kept::hurrier).collect();
        let hurry = || {
            say("hurrying");
            hurriers.iter().for_each(|hurry| hurry());
        };
        for mut kept in self.kept {
            let began = Instant::now();
            say(&format!("stopping {}", kept.name()));
            loop {
                tokio::select! {
                    () = kept.stop() => break,
                    () = signals.next() => hurry(),
                }
            }
            say(&format!("stopped {} ({:.1} s)", kept.name(), began.elapsed().as_secs_f32()));
        }
        let Some(server) = self.server else { return Ok(()) };
        let began = Instant::now();
        say("stopping the database");
        server.stop().await?;
        board.ended(database::SERVICE);
        say(&format!("stopped the database ({:.1} s)", began.elapsed().as_secs_f32()));
        Ok(())
    }
}

async fn report_ready(kept: &Kept, http: &reqwest::Client) -> anyhow::Result<()> {
    let began = Instant::now();
    say(&format!("starting {}", kept.name()));
    kept.ready(http).await?;
    say(&format!("{} is ready ({:.1} s)", kept.name(), began.elapsed().as_secs_f32()));
    Ok(())
}
