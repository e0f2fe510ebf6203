//! An edge from its start to its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ledger::{Ledger, LedgerTasks};
use providers::{AddressPolicy, HttpOptions, ImageOptions, Images, Memory, Providers};
use retrieval::{CredentialUnreadable, Retrieval};
use runtime::{
    Cut, Deadline, Health, Identity, Limits, Listener, Membership, Process, Service, Serving, Stages, advertised,
    persist, wait_for_schema,
};
use store::{Store, schema};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use vault::Vault;

use crate::admission::{Denials, Tally, TokenCounter, keep_writing};
use crate::auth::{LiveCalls, Principals, Strangers, watch};
use crate::body::Bodies;
use crate::catalog::{Catalog, open_credential};
use crate::config::Settings;
use crate::grounding::Grounding;
use crate::routes::usage::Reads;
use crate::stack::{Late, api, front};
use crate::state::{Edge, Shared};
use crate::{changes, log_days};

/// The service as its processes name themselves.
pub const SERVICE: Service = Service { name: "edge", version: env!("CARGO_PKG_VERSION") };

/// For settling what is open; what takes longer is left open in the ledger.
const SETTLE: Duration = Duration::from_secs(10);

/// For leaving the instances, the listener of health included.
const LEAVE: Duration = Duration::from_secs(5);

/// A wait of a known length ends this long before its deadline.
const SLACK: Duration = Duration::from_secs(1);

/// An edge whose ports are bound.
pub struct App {
    settings: Settings,
    http: Listener,
    grpc: Listener,
}

impl App {
    /// Binds the ports; nothing is answered yet.
    ///
    /// # Errors
    /// A port cannot be had.
    pub async fn bind(settings: Settings) -> anyhow::Result<Self> {
        let http = Listener::bind("edge http", settings.listen).await?;
        let grpc = Listener::bind("edge health", settings.health_listen).await?;
        Ok(Self { settings, http, grpc })
    }

    /// The address of the HTTP API, with the port that was chosen when port 0 was asked for.
    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        self.http.address()
    }

    /// The address of gRPC health.
    #[must_use]
    pub fn health_address(&self) -> SocketAddr {
        self.grpc.address()
    }

    /// Answers probes at once, calls as soon as the database is there and migrated, and ends in order when told to.
    ///
    /// # Errors
    /// What keeps an edge from working for good: a key that is not the one of the database, a server that is too old.
    pub async fn run(self, process: Process) -> anyhow::Result<()> {
        let Self { settings, http, grpc } = self;
        let vault = Vault::load(
            settings.secret_key.current.as_ref(),
            settings.secret_key.previous.as_ref(),
            &settings.secret_key.data_dir,
        )?;
        if let Some(warning) = vault.warning() {
            tracing::warn!("{warning}");
        }
        let store = Store::new(&settings.database.keeping(ledger::CONNECTIONS), "ragmux edge")
            .context("DATABASE_URL cannot be used")?;
        let providers = Providers::new(http_options(&settings))?;
        let images = Images::new(image_options(&settings, providers.memory().clone()))?;
        let health = Health::new(schema::expected());
        let addresses = BTreeMap::from([
            ("http", advertised(http.address(), &settings.database).await),
            ("health", advertised(grpc.address(), &settings.database).await),
        ]);
        let (late, cut) = (Late::default(), http.cut());
        let http = http.serve(front(&health, late.clone(), settings.cors_origins.layer()), settings.listener);
        let (probe, follow) = health.grpc_probe(process.service.name).await;
        let grpc = grpc.serve(probe.into_axum_router(), Limits::default());
        let (tasks, stop_tasks) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(stop_tasks.clone().run_until_cancelled_owned(follow));

        let parts = Parts { settings: &settings, process: &process, store: &store, health: &health };
        let started = parts.start(vault, (providers, images), addresses, cut).await;
        let (membership, ledger_tasks) = match started {
            Ok(Started { edge, from, membership, ledger_tasks }) => {
                tasks.spawn(changes::follow(Arc::clone(&edge), from, stop_tasks.clone()));
                tasks.spawn(watch(Arc::clone(&edge), stop_tasks.clone()));
                tasks.spawn(keep_writing(Arc::clone(&edge), stop_tasks.clone()));
                tasks.spawn(log_days::keep_ahead(store.clone(), stop_tasks.clone()));
                late.open(api(&edge));
                membership.active();
                health.started();
                (membership, ledger_tasks)
            }
            Err(error) => {
                http.close().await;
                grpc.close().await;
                stop_tasks.cancel();
                tasks.close();
                tasks.wait().await;
                store.close().await;
                return Err(error);
            }
        };
        process.stop.begun().await;
        let running = Running { health, http, grpc, membership, ledger_tasks, tasks, stop_tasks, store };
        running.stages(&settings).run(process.stop.hurry()).await;
        Ok(())
    }
}

/// What the start needs.
struct Parts<'a> {
    settings: &'a Settings,
    process: &'a Process,
    store: &'a Store,
    health: &'a Health,
}

struct Started {
    edge: Shared,
    from: i64,
    membership: Membership,
    ledger_tasks: LedgerTasks,
}

impl Parts<'_> {
    /// Waits for the database and its schema, checks the key, enters the instances, and builds what calls share.
    async fn start(
        &self,
        vault: Vault,
        (providers, images): (Providers, Images),
        addresses: BTreeMap<&'static str, SocketAddr>,
        cut: Cut,
    ) -> anyhow::Result<Started> {
        let (store, stop) = (self.store, &self.process.stop);
        wait_for_schema(store, self.health, stop).await?;
        let offered = vault.canary()?;
        vault.check_canary(&persist(stop, || store.canary_or_insert(&offered)).await?)?;
        persist(stop, || store.ensure_log_days_ahead()).await?;
        // Before anything is kept: whatever changes from here on is heard of.
        let from = persist(stop, || store.config_sequence()).await?;
        let key_ids = vault.key_ids().iter().map(ToString::to_string).collect();
        let identity = Identity { service: self.process.service, addresses, key_ids };
        let membership = Membership::join(store.clone(), self.health.clone(), identity, stop).await?;
        let (ledger, ledger_tasks) = Ledger::start(store, &membership.standing(), self.settings.orphan_after.0);

        let opener = vault.clone();
        let open = Arc::new(move |target: &_| open_credential(&opener, target).map_err(|_| CredentialUnreadable));
        let commit_after = Some(self.settings.stream_commit_after).filter(|after| !after.is_zero());
        let edge = Arc::new(Edge {
            principals: Principals::new(),
            strangers: Strangers::new(),
            live: LiveCalls::new(cut),
            trusted_proxies: self.settings.trusted_proxies.clone(),
            catalog: Catalog::new(store.clone(), vault),
            counter: TokenCounter::new(),
            denials: Denials::new(),
            tally: Tally::new(),
            bodies: Bodies::new(providers.memory().clone()),
            grounding: Grounding::new(Retrieval::new(store.clone(), providers.clone(), open), providers.clone()),
            usage_reads: Reads::of(store),
            call_limit: self.settings.stream_max_duration,
            commit_after,
            ping_every: self.settings.ping_every,
            store: store.clone(),
            ledger,
            providers,
            images,
            config_poll: self.settings.config_poll,
        });
        Ok(Started { edge, from, membership, ledger_tasks })
    }
}

/// What has to be ended.
struct Running {
    health: Health,
    http: Serving,
    grpc: Serving,
    membership: Membership,
    ledger_tasks: LedgerTasks,
    tasks: TaskTracker,
    stop_tasks: CancellationToken,
    store: Store,
}

impl Running {
    fn stages(self, settings: &Settings) -> Stages {
        let Self { health, http, grpc, membership, ledger_tasks, tasks, stop_tasks, store } = self;
        let delay = settings.shutdown.delay;
        let mut stages = Stages::new();
        // Not ready from here on. Load balancers that take a while to notice are served meanwhile.
        health.draining();
        membership.draining();
        http.ask_to_leave();
        stages.push("keep serving", delay + SLACK, move |deadline: Deadline| async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = deadline.reached() => {}
            }
        });
        stages.push("drain", settings.shutdown.drain, async move |deadline| {
            http.drain(deadline).await;
        });
        // Every call has ended by now, each with its settlement handed in.
        stages.push_settling("settle", SETTLE, async move |_| {
            if !ledger_tasks.finish(SETTLE).await {
                tracing::warn!("some calls could not be settled and stay open in the ledger");
            }
        });
        stages.push("leave", LEAVE, async move |deadline: Deadline| {
            stop_tasks.cancel();
            tasks.close();
            tokio::select! {
                () = tasks.wait() => {}
                () = deadline.reached() => {}
            }
            membership.leave(deadline).await;
            grpc.close().await;
            store.close().await;
        });
        stages
    }
}

fn image_options(settings: &Settings, memory: Memory) -> ImageOptions {
    ImageOptions {
        enabled: settings.image_fetch,
        timeout: settings.image_fetch_timeout,
        addresses: settings.image_addresses.clone(),
        memory,
        ..ImageOptions::default()
    }
}

fn http_options(settings: &Settings) -> HttpOptions {
    HttpOptions {
        header_timeout: settings.upstream_timeout,
        idle_timeout: settings.upstream_idle,
        stream_max_duration: settings.stream_max_duration,
        stream_max_bytes: settings.stream_max_bytes.as_bytes(),
        addresses: AddressPolicy::new(
            settings.private_upstreams.allow_all,
            settings.private_upstreams.hosts.iter().cloned(),
        ),
        memory: Memory::of(settings.bodies.as_bytes()),
    }
}
