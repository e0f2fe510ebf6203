//! The worker's settings.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ::config::{Choice, Database, Env, Logging, OrphanAfter, PrivateUpstreams, SecretKey, Shutdown};
use extract::protocol::SandboxPolicy;

/// All settings of the service.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database.
    pub database: Database,
    /// The key that opens credentials.
    pub secret_key: SecretKey,
    /// The log.
    pub logging: Logging,
    /// The end.
    pub shutdown: Shutdown,
    /// `WORKER_LISTEN`: where `/healthz` and `/readyz` are.
    pub listen: SocketAddr,
    /// `HEALTH_GRPC_LISTEN`: where gRPC health is.
    pub health_grpc_listen: SocketAddr,
    /// `INGEST_WORKERS`: documents at a time.
    pub workers: usize,
    /// `INGEST_LEASE`: how long a claim holds without renewal.
    pub lease: Duration,
    /// `INGEST_POLL_INTERVAL`: how often the queue is looked at without a notification.
    pub poll_interval: Duration,
    /// `INGEST_MAX_ATTEMPTS`: claims without a verdict after which a document is given up.
    pub max_attempts: i32,
    /// `MAX_CHUNKS_PER_DOCUMENT`.
    pub max_chunks: usize,
    /// `EXTRACT_SANDBOX`: whether parsing without a system call filter is allowed.
    pub sandbox: SandboxPolicy,
    /// `UPSTREAM_TIMEOUT`: how long an embedding provider may take to answer.
    pub upstream_timeout: Duration,
    /// `LEDGER_ORPHAN_AFTER`: after how long without a beat another process is given up.
    pub orphan_after: OrphanAfter,
    /// Which addresses providers may be at.
    pub private_upstreams: PrivateUpstreams,
}

/// `EXTRACT_SANDBOX` in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sandbox(SandboxPolicy);

impl Choice for Sandbox {
    const NAMES: &'static [(&'static str, Self)] =
        &[("best_effort", Self(SandboxPolicy::BestEffort)), ("required", Self(SandboxPolicy::Required))];
}

impl runtime::Settings for Config {
    fn read(env: &mut Env) -> Self {
        Self {
            database: Database::read(env),
            secret_key: SecretKey::read(env),
            logging: Logging::read(env),
            shutdown: Shutdown::read(env),
            listen: env.listen("WORKER_LISTEN", (Ipv4Addr::UNSPECIFIED, 8767)),
            health_grpc_listen: env.listen("HEALTH_GRPC_LISTEN", (Ipv4Addr::UNSPECIFIED, 8769)),
            workers: env.number("INGEST_WORKERS", 2, 1..=64),
            lease: env.duration(
                "INGEST_LEASE",
                Duration::from_secs(120),
                Duration::from_secs(3)..=Duration::from_secs(3600),
            ),
            poll_interval: env.duration(
                "INGEST_POLL_INTERVAL",
                Duration::from_secs(5),
                Duration::from_millis(100)..=Duration::from_secs(300),
            ),
            max_attempts: env.number("INGEST_MAX_ATTEMPTS", 5, 1..=100),
            max_chunks: env.number("MAX_CHUNKS_PER_DOCUMENT", 20_000, 1..=1_000_000),
            sandbox: env.choice("EXTRACT_SANDBOX", Sandbox(SandboxPolicy::BestEffort)).0,
            upstream_timeout: env.duration(
                "UPSTREAM_TIMEOUT",
                Duration::from_secs(300),
                Duration::from_secs(1)..=Duration::from_secs(3600),
            ),
            orphan_after: OrphanAfter::read(env),
            private_upstreams: PrivateUpstreams::read(env),
        }
    }

    fn logging(&self) -> &Logging {
        &self.logging
    }

    fn health_address(&self) -> SocketAddr {
        self.listen
    }
}
