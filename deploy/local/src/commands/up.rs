//! `ragmux up`: start everything, stay, and stop everything in order.

use std::net::SocketAddr;

use anyhow::{anyhow, bail};
use config::Env;
use domain::Secret;
use tokio::time::Instant;

use super::running::Running;
use super::summary;
use crate::arguments::Up;
use crate::database::{self, Foreign, Server, Urls};
use crate::installation::Installation;
use crate::models::Models;
use crate::ports::{Ports, check_free};
use crate::setup::{self, Api, Wanted};
use crate::signals::Signals;
use crate::state_dir::StateDir;
use crate::status::{Board, State, Status};
use crate::terminal::{is_interactive, program, say};

/// Runs until it is told to stop.
///
/// # Errors
///
/// One sentence about what kept it from starting; what had been started is stopped then.
pub(crate) async fn run(dir: StateDir, ports: Ports, up: &Up) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let dir = dir.create()?;
    let lock = match dir.lock().await? {
        Ok(lock) => lock,
        Err(holder) => bail!(
            "another copy is already running in {} ({holder}): `{} status` shows it; --state-dir DIR and --port-base N \
             start a second one beside it",
            dir.path().display(),
            program()
        ),
    };
    let board = Board::new(dir.clone(), Status { state: State::Starting, ..Status::default() });
    let mut running = Running::default();
    let started = tokio::select! {
        started = start(&mut running, &dir, ports, up, &board) => started.map(Some),
        () = signals.next() => Ok(None),
    };
    let outcome = match started {
        Ok(Some(summary)) => {
            board.change(|status| status.state = State::Ready);
            say(&summary);
            tokio::select! {
                () = running.keep(&board) => {}
                () = signals.next() => {}
            }
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    board.change(|status| status.state = State::Stopping);
    let stopped = running.stop(&mut signals, &board).await;
    drop(lock);
    outcome.and(stopped)
}

/// What the environment says about an installation.
struct Environment {
    admin_user: Option<String>,
    admin_password: Option<Secret>,
    openai_key: Option<Secret>,
}

impl Environment {
    fn read() -> anyhow::Result<Self> {
        let mut env = Env::process();
        let read = Self {
            admin_user: env.optional_text("ADMIN_USER"),
            admin_password: env.secret("ADMIN_PASSWORD"),
            openai_key: env.secret("OPENAI_API_KEY"),
        };
        env.finish().map_err(|mistakes| anyhow!(database::sentence(&mistakes)))?;
        Ok(read)
    }
}

/// Starts everything and sets it up; returns what there is to say about it. Dropping it half-way leaves what has been
/// started to [`Running::stop`].
async fn start(running: &mut Running, dir: &StateDir, ports: Ports, up: &Up, board: &Board) -> anyhow::Result<String> {
    let began = Instant::now();
    let environment = Environment::read()?;
    let foreign = database::from_environment().await?;
    let place = foreign.as_ref().map(|foreign| foreign.place.as_str());
    let mut installation = Installation::open(dir, place, (environment.admin_user, environment.admin_password))?;
    let has_key = environment.openai_key.is_some();
    let models = Models::choose(up.upstream, installation.models, has_key, is_interactive()).await;
    let urls = open_database(running, dir, foreign, ports, models, &installation, board).await?;
    board.change(|status| describe(status, ports, models, &urls, &installation));
    let http = running.start_services(dir, ports, models, &urls, &installation, board).await?;

    let api = Api::sign_in(http, &format!("http://{}", ports.admin()), &installation).await?;
    let openai_key = environment.openai_key.as_ref();
    let wanted = Wanted { models, ports, openai_key, samples: !up.no_sample };
    let done = setup::run(&api, dir, &mut installation, wanted).await?;
    board.change(|status| {
        status.project_key.clone_from(&installation.project_key);
        status.store_id = Some(done.store);
    });
    say(&format!("ready after {:.1} s", began.elapsed().as_secs_f32()));
    Ok(summary::text(dir, ports, &installation, models, done.store))
}

/// The database, migrated. Nothing is started before it is sure that everything can listen where it is to.
async fn open_database(
    running: &mut Running,
    dir: &StateDir,
    foreign: Option<Foreign>,
    ports: Ports,
    models: Models,
    installation: &Installation,
    board: &Board,
) -> anyhow::Result<Urls> {
    let mut wanted = listeners(ports, models);
    if let Some(foreign) = foreign {
        check_free(wanted)?;
        database::migrate(&foreign.settings).await?;
        return Ok(foreign.urls);
    }
    wanted.push((database::SERVICE, ports.database()));
    check_free(wanted)?;
    let server = running.server.insert(Server::start(dir, ports).await?);
    server.running().into_iter().for_each(|running| board.started(running));
    let urls = server.provision(&installation.database_password).await?;
    database::migrate(&database::direct(&urls.owner)).await?;
    Ok(urls)
}

/// What will listen where, the database apart.
fn listeners(ports: Ports, models: Models) -> Vec<(&'static str, SocketAddr)> {
    let mut listeners = vec![
        ("admin", ports.admin()),
        ("edge", ports.edge()),
        ("admin (gRPC)", ports.admin_grpc()),
        ("ingestion-worker", ports.worker()),
        ("edge (health)", ports.edge_health()),
        ("ingestion-worker (health)", ports.worker_health()),
    ];
    if models == Models::Demo {
        listeners.push(("the demonstration model", ports.upstream()));
    }
    listeners
}

fn describe(status: &mut Status, ports: Ports, models: Models, urls: &Urls, installation: &Installation) {
    status.edge_url = Some(format!("http://{}", ports.edge()));
    status.admin_url = Some(format!("http://{}", ports.admin()));
    status.admin_grpc = Some(ports.admin_grpc());
    status.upstream_url = (models == Models::Demo).then(|| format!("http://{}", ports.upstream()));
    status.database_url = Some(urls.owner.clone());
    status.project_key.clone_from(&installation.project_key);
    status.admin_user = Some(installation.admin_user.clone());
    status.admin_password = Some(installation.admin_password.clone());
}
