//! The database of an installation: a private PostgreSQL, or the one that DATABASE_URL names.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use config::{Mistakes, Pooler};
use domain::Secret;
use pgserver::{Cluster, ClusterOptions, Home, PgServerError};
use store::{Store, StoreError, provision, schema};
use tokio::time::{Instant, sleep};
use url::Url;

use crate::guard::Guard;
use crate::ports::Ports;
use crate::state_dir::StateDir;
use crate::status::{Board, Running};
use crate::terminal::say;

/// The database's name on the private server.
const NAME: &str = "ragmux";

/// What a killed copy's guard needs to stop the server it left.
const TAKE_OVER: Duration = Duration::from_secs(60);

const RETRY: Duration = Duration::from_millis(100);

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A server that ran this long is not in a crash loop.
const STEADY: Duration = Duration::from_secs(60);

/// What the server is called in `status`.
pub(crate) const SERVICE: &str = "database";

/// How each service reaches the database.
#[derive(Clone, Debug)]
pub(crate) struct Urls {
    /// For migrations.
    pub(crate) owner: Secret,
    pub(crate) edge: Secret,
    /// For admin and ingestion-worker.
    pub(crate) backend: Secret,
}

/// A private server, owned by this process.
#[derive(Debug)]
pub(crate) struct Server {
    home: Home,
    programs: pgserver::Installation,
    port: u16,
    guard: Guard,
    /// `None` only between the end of one server and the start of the next.
    cluster: Option<Cluster>,
}

impl Server {
    /// Fetches PostgreSQL when need be, makes the cluster when need be, and starts the server.
    pub(crate) async fn start(dir: &StateDir, ports: Ports) -> anyhow::Result<Self> {
        let home = Home::open(dir.path())?;
        home.notice().iter().for_each(|notice| say(notice));
        let programs = pgserver::Installation::ensure(&home, &|step| say(&step.to_string())).await?;
        let is_new = !home.dir().join("data").exists();
        say(if is_new { "creating the database" } else { "starting PostgreSQL" });
        let guard = Guard::start(home.dir())?;
        let mut server = Self { home, programs, port: ports.database().port(), guard, cluster: None };
        server.open().await?;
        Ok(server)
    }

    async fn open(&mut self) -> Result<(), PgServerError> {
        let mut options = ClusterOptions::default();
        options.port = Some(self.port);
        let give_up = Instant::now() + TAKE_OVER;
        loop {
            match Cluster::open(&self.programs, self.home.dir(), options.clone()).await {
                // This process has the state folder's lock, so whoever has the cluster is the guard of a killed copy.
                Err(PgServerError::AlreadyRunning { .. }) if Instant::now() < give_up => sleep(RETRY).await,
                Err(error) => return Err(error),
                Ok(cluster) => {
                    self.cluster = Some(cluster);
                    return Ok(());
                }
            }
        }
    }

    /// Makes the database and its roles when need be.
    pub(crate) async fn provision(&self, password: &Secret) -> anyhow::Result<Urls> {
        let cluster = self.cluster.as_ref().context("PostgreSQL does not run")?;
        let urls =
            provision::provision(cluster.url(), NAME, password).await.context("the database cannot be prepared")?;
        Ok(Urls { owner: urls.owner, edge: urls.edge, backend: urls.backend })
    }

    /// What `status` shows of it.
    pub(crate) fn running(&self) -> Option<Running> {
        let cluster = self.cluster.as_ref()?;
        let listen = BTreeMap::from([("postgres".to_owned(), (Ipv4Addr::LOCALHOST, cluster.port()).into())]);
        Some(Running { name: SERVICE.to_owned(), pid: cluster.pid(), listen, log: cluster.log().to_owned() })
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Starts the server again whenever it ends by itself; the services wait for it. Never ends; dropping it in between
    /// leaves a server that [`Server::stop`] stops.
    pub(crate) async fn keep(&mut self, board: &Board) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let how = match &mut self.cluster {
                Some(cluster) => match cluster.ended().await {
                    Ok(status) => format!("ended by itself ({status}, log: {})", cluster.log().display()),
                    Err(error) => format!("is lost ({error})"),
                },
                None => match self.open().await {
                    Ok(()) => {
                        self.running().into_iter().for_each(|running| board.started(running));
                        continue;
                    }
                    Err(error) => format!("could not be started: {error}"),
                },
            };
            self.cluster = None;
            board.ended(SERVICE);
            pause = if began.elapsed() > STEADY { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            say(&format!("PostgreSQL {how}; starting it again in {:.1} s", pause.as_secs_f32()));
            sleep(pause).await;
        }
    }

    /// Stops the server, then lets the guard go.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let stopped = match self.cluster.take() {
            Some(cluster) => cluster.stop().await,
            None => Ok(()),
        };
        self.guard.end().await;
        Ok(stopped?)
    }
}

/// A database that is there already. One role stands for all three.
pub(crate) struct Foreign {
    pub(crate) settings: config::Database,
    pub(crate) urls: Urls,
    /// Host, port and name.
    pub(crate) place: String,
}

/// The database of the environment, if it names one.
///
/// # Errors
///
/// One sentence when it cannot be used.
pub(crate) async fn from_environment() -> anyhow::Result<Option<Foreign>> {
    let is_set = |key: &str| std::env::var_os(key).is_some_and(|value| !value.is_empty());
    if !is_set("DATABASE_URL") && !is_set("DATABASE_URL_FILE") {
        return Ok(None);
    }
    let mut env = config::Env::process();
    let settings = config::Database::read(&mut env);
    env.finish().map_err(|mistakes| anyhow!(sentence(&mistakes)))?;
    let (host, port) = settings.server().unwrap_or_default();
    let name = Url::parse(settings.url.expose()).map(|url| url.path().to_owned()).unwrap_or_default();
    let place = format!("{host}:{port}{name}");
    say(&format!("using the database of DATABASE_URL ({place})"));
    reach(&settings, &place).await?;
    provision::offer_extension(&settings.url).await?;
    let url = settings.url.clone();
    let urls = Urls { owner: url.clone(), edge: url.clone(), backend: url };
    Ok(Some(Foreign { settings, urls, place }))
}

/// What is wrong with the environment, in one line.
pub(crate) fn sentence(mistakes: &Mistakes) -> String {
    let mistakes: Vec<String> = mistakes.0.iter().map(ToString::to_string).collect();
    mistakes.join("; ")
}

async fn reach(database: &config::Database, place: &str) -> anyhow::Result<()> {
    let store = Store::new(database, "ragmux launcher")?;
    let answer = store.ping().await;
    store.close().await;
    answer.map_err(|error| {
        let cause = match &error {
            StoreError::Unavailable { source } | StoreError::Timeout { source } | StoreError::Unexpected { source } => {
                source.to_string()
            }
            other => other.to_string(),
        };
        anyhow!("the database of DATABASE_URL ({place}) cannot be reached: {cause}")
    })
}

/// The settings of a connection to a private server.
pub(crate) fn direct(url: &Secret) -> config::Database {
    config::Database {
        url: url.clone(),
        pooler: Pooler::None,
        max_connections: 3,
        acquire_timeout: Duration::from_secs(10),
        schema: "public".to_owned(),
    }
}

/// Brings the schema up to date and says so.
pub(crate) async fn migrate(database: &config::Database) -> anyhow::Result<()> {
    let applied = schema::migrate(database, false).await.context("the database cannot be migrated")?;
    match applied.len() {
        0 => {}
        1 => say(&format!("migrated: one migration, now at version {}", schema::expected())),
        count => say(&format!("migrated: {count} migrations, now at version {}", schema::expected())),
    }
    Ok(())
}
