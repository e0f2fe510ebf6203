//! The worker as a process: what it waits for, what runs, and how it ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use domain::StoreId;
use ledger::Ledger;
use providers::{AddressPolicy, HttpOptions, Providers};
use runtime::{
    Health, Identity, Limits, Listener, Membership, Process, Stages, Stop, advertised, persist, wait_for_schema,
};
use store::{Store, schema};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use vault::Vault;

use crate::config::Config;
use crate::dispatcher::Dispatcher;
use crate::job::Workshop;
use crate::lanes::Lanes;
use crate::lease::Leases;
use crate::parser::{Parser, ParserSettings};
use crate::switch::Switcher;
use crate::tally::{Counted, Tally};
use crate::vectors::Keeper;

/// Running jobs may end by themselves for this long; then they are cancelled.
const JOBS_BUDGET: Duration = Duration::from_secs(30);
/// For a claim that is on its way, which the server ends after ten seconds at most.
const CLAIM_BUDGET: Duration = Duration::from_secs(12);
const LAST_RECORDS: Duration = Duration::from_secs(4);
const HAND_BACK: Duration = Duration::from_secs(5);
const HAND_BACK_BUDGET: Duration = Duration::from_secs(10);
const SETTLE_BUDGET: Duration = Duration::from_secs(10);
const CLOSE_BUDGET: Duration = Duration::from_secs(5);

/// Runs the worker until it is told to stop.
///
/// # Errors
/// What keeps it from starting: a port in use, another key than the database's, a database that is not ours.
pub async fn run(process: Process, config: Config) -> anyhow::Result<()> {
    let health = Health::new(schema::expected());
    let listener = Listener::bind("worker http", config.listen).await?;
    let grpc = Listener::bind("worker health", config.health_grpc_listen).await?;
    let addresses = BTreeMap::from([
        ("http", advertised(listener.address(), &config.database).await),
        ("health", advertised(grpc.address(), &config.database).await),
    ]);
    let (routes, follower) = health.grpc_probe("ingestion-worker").await;
    let follower = tokio::spawn(follower);
    let serving = listener.serve(health.http_probes(), Limits::default());
    let serving_grpc = grpc.serve(routes.into_axum_router(), Limits::default());

    let store = Store::new(&config.database.keeping(ledger::CONNECTIONS), "ragmux ingestion-worker")?;
    wait_for_schema(&store, &health, &process.stop).await?;
    let vault = open_vault(&config, &store, &process.stop).await?;
    let providers = Providers::new(http_options(&config)).context("the HTTP client cannot be set up")?;
    let identity = Identity {
        service: process.service,
        addresses,
        key_ids: vault.key_ids().iter().map(ToString::to_string).collect(),
    };
    let member = Membership::join(store.clone(), health.clone(), identity, &process.stop).await?;
    let (ledger, ledger_tasks) = Ledger::start(&store, &member.standing(), config.orphan_after.0);
    let tally = Arc::new(Tally::default());
    let workshop = Arc::new(Workshop {
        store: store.clone(),
        providers,
        ledger,
        vault: Arc::new(vault),
        parser: Parser::new(ParserSettings::own_binary(config.sandbox)),
        max_chunks: config.max_chunks,
        lease: config.lease,
        max_attempts: config.max_attempts,
        tally: Arc::clone(&tally),
    });
    let leases = Leases::new(store.clone(), config.lease, Arc::clone(&tally));
    let renewals = tokio::spawn(leases.clone().run());
    let jobs = TaskTracker::new();
    let stop_claiming = CancellationToken::new();
    let switcher =
        Switcher { workshop: Arc::clone(&workshop), owner: member.owner(), poll_interval: config.poll_interval };
    let dispatcher = Dispatcher {
        workshop,
        leases: leases.clone(),
        owner: member.owner(),
        workers: config.workers,
        poll_interval: config.poll_interval,
        // Somewhere of its own, so that workers that start together do not all begin with the same stores.
        cursor: StoreId(rand::random_range(0..=1_000)),
        jobs: jobs.clone(),
        lanes: Lanes::default(),
        suspects: Arc::new(Semaphore::new(1)),
    };
    health.started();
    member.active();
    tracing::info!(
        owner = &*member.owner(),
        workers = config.workers,
        lease_ms = config.lease.as_millis() as u64,
        poll_interval_ms = config.poll_interval.as_millis() as u64,
        "ingestion ready"
    );
    let mut dispatcher = tokio::spawn(dispatcher.run(stop_claiming.clone()));
    let mut switcher = tokio::spawn(switcher.run(stop_claiming.clone()));
    let keeper = tokio::spawn(Keeper::new(store.clone()).run(stop_claiming.clone()));

    process.stop.begun().await;
    health.draining();
    member.draining();
    let mut stages = Stages::new();
    stages.push("stop claiming", CLAIM_BUDGET, move |deadline| async move {
        stop_claiming.cancel();
        // It ends at once, and what it was at is rolled back.
        let _ = keeper.await;
        tokio::select! {
            // A panic in it was logged; what it had claimed is in the leases.
            _ = &mut dispatcher => {}
            // A claim whose answer nobody waits for is rolled back.
            () = deadline.reached() => dispatcher.abort(),
        }
        tokio::select! {
            _ = &mut switcher => {}
            () = deadline.reached() => switcher.abort(),
        }
    });
    let running = jobs.clone();
    stages.push("finish running jobs", JOBS_BUDGET, move |deadline| async move {
        running.close();
        tokio::select! {
            () = running.wait() => {}
            () = deadline.reached() => {}
        }
    });
    let store_of_claims = store.clone();
    stages.push_settling("hand documents back", HAND_BACK_BUDGET, move |_| async move {
        let claims = leases.keys();
        leases.give_up_all();
        jobs.close();
        // A job that is still recording its end holds nobody up: the record or the hand-back comes first, and the other
        // changes nothing.
        if timeout(LAST_RECORDS, jobs.wait()).await.is_err() {
            tracing::warn!(jobs = jobs.len(), "documents are put back while jobs have not ended");
        }
        renewals.abort();
        match timeout(HAND_BACK, store_of_claims.hand_back_documents(&claims)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(documents)) => {
                tally.count_many(Counted::PutBack, documents);
                tracing::info!(documents, "documents were put back");
            }
            Err(_) => tracing::warn!(claims = claims.len(), "documents were not put back in time; their leases lapse"),
            Ok(Err(error)) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "documents could not be put back; their leases lapse"
            ),
        }
        tally.log();
    });
    stages.push("settle calls", SETTLE_BUDGET, move |_| async move {
        ledger_tasks.finish(SETTLE_BUDGET).await;
    });
    stages.push("close", CLOSE_BUDGET, move |deadline| async move {
        member.leave(deadline).await;
        follower.abort();
        serving.close().await;
        serving_grpc.close().await;
        store.close().await;
    });
    stages.run(process.stop.hurry()).await;
    Ok(())
}

/// The key ring, checked against the canary of the database before anything is opened with it.
async fn open_vault(config: &Config, store: &Store, stop: &Stop) -> anyhow::Result<Vault> {
    let secret = &config.secret_key;
    let vault = Vault::load(secret.current.as_ref(), secret.previous.as_ref(), &secret.data_dir)?;
    if let Some(warning) = vault.warning() {
        tracing::warn!("{warning}");
    }
    let offered = vault.canary()?;
    vault.check_canary(&persist(stop, || store.canary_or_insert(&offered)).await?)?;
    Ok(vault)
}

fn http_options(config: &Config) -> HttpOptions {
    HttpOptions {
        header_timeout: config.upstream_timeout,
        addresses: AddressPolicy::new(
            config.private_upstreams.allow_all,
            config.private_upstreams.hosts.iter().cloned(),
        ),
        ..HttpOptions::default()
    }
}
