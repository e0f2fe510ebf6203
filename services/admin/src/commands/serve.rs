//! The service from start to stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use runtime::{
    Health, Identity, Limits, Listener, Membership, Process, Serving, Stages, Stop, advertised, persist,
    wait_for_schema,
};
use store::audit::{Actor, AuditEntry};
use store::{Store, schema};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use vault::Vault;

use super::SERVICE;
use super::migrate::migrate;
use crate::app::App;
use crate::config::{FirstUser, Settings};
use crate::{jobs, stack};

/// Budgets of the end, beside the drain.
const JOBS_END: Duration = Duration::from_secs(5);
const LEAVING: Duration = Duration::from_secs(5);
const CLOSING: Duration = Duration::from_secs(5);

pub(super) async fn run(process: Process, settings: Settings) -> anyhow::Result<()> {
    let stop = process.stop;
    let health = Health::new(schema::expected());
    let store = Store::new(&settings.database, SERVICE.name)?;
    let vault = load_vault(&settings)?;
    let app = App::new(&settings, store.clone(), vault, health.clone())?;

    // Bound and answering before anything is waited for, so that the process can be seen to wait.
    let http = Listener::bind("http", settings.listen).await?;
    let grpc = Listener::bind("grpc", settings.grpc_listen).await?;
    let http = http.serve(stack::router(&app), Limits::default());
    let (probe, follow) = health.grpc_probe(SERVICE.name).await;
    let grpc = grpc.serve(probe.into_axum_router(), Limits::default());
    let follow = tokio::spawn(follow);

    migrate(&settings, false, &stop).await?;
    wait_for_schema(&store, &health, &stop).await?;
    check_canary(&app, &stop).await?;
    if let Some(first) = &settings.first_user {
        make_first_user(&app, first, &stop).await?;
    }
    let addresses = BTreeMap::from([
        ("http", advertised(http.address(), &settings.database).await),
        ("grpc", advertised(grpc.address(), &settings.database).await),
    ]);
    let key_ids = app.vault.key_ids().iter().map(ToString::to_string).collect();
    let identity = Identity { service: SERVICE, addresses, key_ids };
    let membership = Membership::join(store.clone(), health.clone(), identity, &stop).await?;
    let housekeeping = CancellationToken::new();
    app.tasks.spawn(jobs::run(Arc::clone(&app), housekeeping.clone()));
    app.tasks.spawn(jobs::embeddings::run(Arc::clone(&app), housekeeping.clone()));
    app.tasks.spawn(jobs::removals::run(Arc::clone(&app), housekeeping.clone()));
    app.tasks.spawn(jobs::rollups::run(Arc::clone(&app), housekeeping.clone()));
    app.tasks.spawn(jobs::folding::run(Arc::clone(&app), housekeeping.clone()));
    membership.active();
    health.started();
    tracing::info!(owner = &*membership.owner(), "admin ready");

    stop.begun().await;
    let parts = Parts { app, http, grpc, follow, membership, housekeeping };
    parts.stages(&settings).run(stop.hurry()).await;
    Ok(())
}

/// What has to be ended in order.
struct Parts {
    app: Arc<App>,
    http: Serving,
    grpc: Serving,
    follow: JoinHandle<()>,
    membership: Membership,
    housekeeping: CancellationToken,
}

impl Parts {
    fn stages(self, settings: &Settings) -> Stages {
        let Self { app, http, grpc, follow, membership, housekeeping } = self;
        let mut stages = Stages::new();
        app.health.draining();
        membership.draining();
        http.ask_to_leave();
        let delay = settings.shutdown.delay;
        stages.push("leave the load balancers", delay, move |_| tokio::time::sleep(delay));
        stages.push("drain", settings.shutdown.drain, |deadline| async move {
            http.drain(deadline).await;
        });
        let (store, tasks) = (app.store.clone(), app.tasks.clone());
        // Uploads that were cut still remove what they have stored.
        stages.push_settling("end housekeeping and unfinished uploads", JOBS_END, |deadline| async move {
            housekeeping.cancel();
            tasks.close();
            tokio::select! {
                () = tasks.wait() => {}
                () = deadline.reached() => {}
            }
        });
        stages.push("leave the fleet", LEAVING, |deadline| membership.leave(deadline));
        stages.push("close", CLOSING, |_| async move {
            grpc.close().await;
            follow.abort();
            store.close().await;
        });
        stages
    }
}

fn load_vault(settings: &Settings) -> anyhow::Result<Vault> {
    let key = &settings.secret_key;
    let vault = Vault::load(key.current.as_ref(), key.previous.as_ref(), &key.data_dir)?;
    if let Some(warning) = vault.warning() {
        tracing::warn!("{warning}");
    }
    Ok(vault)
}

/// Makes sure that this process has the key the database was written with, before it touches a credential.
async fn check_canary(app: &App, stop: &Stop) -> anyhow::Result<()> {
    let offered = app.vault.canary()?;
    let stored = persist(stop, || app.store.canary_or_insert(&offered)).await?;
    app.vault.check_canary(&stored)?;
    Ok(())
}

/// Makes the administrator of the settings if there is nobody. Of many processes at once exactly one does.
async fn make_first_user(app: &App, first: &FirstUser, stop: &Stop) -> anyhow::Result<()> {
    if persist(stop, || app.store.has_users()).await? {
        return Ok(());
    }
    let hash = app.passwords.hash(first.password.clone()).await?;
    let entry = AuditEntry::new(Actor::named("start"), "setup.complete");
    let made = persist(stop, || app.store.create_first_user(&first.username, &hash, &entry)).await?;
    if made.is_some() {
        tracing::info!(username = first.username, "the first administrator was made from ADMIN_USER");
    }
    Ok(())
}
