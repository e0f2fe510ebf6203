//! The settings of an edge.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use config::{Database, Env, Logging, OrphanAfter, PrivateUpstreams, SecretKey, Shutdown, Size, TrustedProxies};
use providers::AddressPolicy;
use runtime::Limits;

use crate::cors::CorsOrigins;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A change is to be followed within 5 s where there are no notifications; one of these seconds is for following it.
const CONFIG_POLL: Duration = Duration::from_secs(4);

/// Everything an edge reads from its environment.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where PostgreSQL is.
    pub database: Database,
    /// The key that opens credentials.
    pub secret_key: SecretKey,
    /// The log.
    pub logging: Logging,
    /// The budgets of a stop.
    pub shutdown: Shutdown,
    /// `EDGE_LISTEN`: the HTTP API and the HTTP probes.
    pub listen: SocketAddr,
    /// `HEALTH_GRPC_LISTEN`: gRPC health only, plain text.
    pub health_listen: SocketAddr,
    /// `UPSTREAM_TIMEOUT`: how long a provider may take to the head of its answer.
    pub upstream_timeout: Duration,
    /// `STREAM_MAX_DURATION`: how long a call may last altogether.
    pub stream_max_duration: Duration,
    /// `STREAM_MAX_BYTES_MB`: the most bytes of a stream.
    pub stream_max_bytes: Size,
    /// `STREAM_COMMIT_AFTER`: after how long a stream's status is sent although the provider has said nothing yet;
    /// zero for never.
    pub stream_commit_after: Duration,
    /// `IMAGE_FETCH`: whether images that a request names by URL are fetched for providers that want their bytes.
    pub image_fetch: bool,
    /// `IMAGE_FETCH_TIMEOUT`: how long one such image may take; all of a request may take twice as long.
    pub image_fetch_timeout: Duration,
    /// The private addresses that are called for images all the same: none. Not of the environment.
    pub image_addresses: AddressPolicy,
    /// `LEDGER_ORPHAN_AFTER`: after how long without a beat another process is given up.
    pub orphan_after: OrphanAfter,
    /// Which addresses connections may lead to.
    pub private_upstreams: PrivateUpstreams,
    /// `CORS_ORIGINS`: the web pages that may call.
    pub cors_origins: CorsOrigins,
    /// Which proxies are believed when they say where a call comes from.
    pub trusted_proxies: TrustedProxies,
    /// After how long without a notification changes of configuration are looked for. Not of the environment.
    pub config_poll: Duration,
    /// How long a provider may be silent within an answer. Not of the environment.
    pub upstream_idle: Duration,
    /// How long a stream may be silent before a comment is sent, so that nothing on the way takes it for dead. Not of
    /// the environment.
    pub ping_every: Duration,
    /// What the bodies of all requests and answers in flight may take together; beyond it calls are refused. Not of the environment.
    pub bodies: Size,
    /// What a client may take of the listener. Not of the environment.
    pub listener: Limits,
}

impl runtime::Settings for Settings {
    fn read(env: &mut Env) -> Self {
        Self {
            database: Database::read(env),
            secret_key: SecretKey::read(env),
            logging: Logging::read(env),
            shutdown: Shutdown::read(env),
            listen: env.listen("EDGE_LISTEN", (Ipv4Addr::UNSPECIFIED, 8765)),
            health_listen: env.listen("HEALTH_GRPC_LISTEN", (Ipv4Addr::UNSPECIFIED, 8768)),
            upstream_timeout: env.duration("UPSTREAM_TIMEOUT", 5 * MINUTE, SECOND..=HOUR),
            stream_max_duration: env.duration("STREAM_MAX_DURATION", 30 * MINUTE, SECOND..=24 * HOUR),
            stream_max_bytes: env.mebibytes("STREAM_MAX_BYTES_MB", 256, 1..=65_536),
            stream_commit_after: env.duration("STREAM_COMMIT_AFTER", 15 * SECOND, Duration::ZERO..=HOUR),
            image_fetch: env.flag("IMAGE_FETCH", true),
            image_fetch_timeout: env.duration("IMAGE_FETCH_TIMEOUT", 10 * SECOND, SECOND..=10 * MINUTE),
            image_addresses: AddressPolicy::default(),
            orphan_after: OrphanAfter::read(env),
            private_upstreams: PrivateUpstreams::read(env),
            cors_origins: CorsOrigins::read(env),
            trusted_proxies: TrustedProxies::read(env),
            config_poll: CONFIG_POLL,
            upstream_idle: 5 * MINUTE,
            ping_every: 15 * SECOND,
            bodies: Size::mebibytes(512),
            listener: Limits::default(),
        }
    }

    fn logging(&self) -> &Logging {
        &self.logging
    }

    fn health_address(&self) -> SocketAddr {
        self.listen
    }
}

#[cfg(test)]
mod tests {
    use runtime::Settings as _;

    use super::*;

    #[test]
    fn only_the_database_must_be_named() {
        let mut env = Env::of([("DATABASE_URL", "postgres://u@db/n")]);
        let settings = Settings::read(&mut env);
        env.finish().unwrap();
        assert_eq!(settings.listen.to_string(), "0.0.0.0:8765");
        assert_eq!(settings.health_listen.to_string(), "0.0.0.0:8768");
        assert_eq!(settings.stream_max_bytes, Size::mebibytes(256));
        assert_eq!((settings.stream_commit_after, settings.ping_every), (15 * SECOND, 15 * SECOND));
        assert_eq!((settings.upstream_timeout, settings.upstream_idle), (5 * MINUTE, 5 * MINUTE));
        assert_eq!(settings.stream_max_duration, 30 * MINUTE);
        assert_eq!(settings.private_upstreams, PrivateUpstreams::default());
        assert_eq!((settings.image_fetch, settings.image_fetch_timeout), (true, 10 * SECOND));
        assert!(!settings.image_addresses.trusts("127.0.0.1"));
    }

    #[test]
    fn every_mistake_is_told() {
        let mut env = Env::of([
            ("EDGE_LISTEN", "here"),
            ("UPSTREAM_TIMEOUT", "0"),
            ("STREAM_MAX_BYTES_MB", "0"),
            ("IMAGE_FETCH", "perhaps"),
            ("IMAGE_FETCH_TIMEOUT", "0"),
            ("ALLOW_PRIVATE_UPSTREAMS", "maybe"),
        ]);
        Settings::read(&mut env);
        let told = env.finish().unwrap_err().to_string();
        for key in [
            "DATABASE_URL",
            "EDGE_LISTEN",
            "UPSTREAM_TIMEOUT",
            "STREAM_MAX_BYTES_MB",
            "IMAGE_FETCH is",
            "IMAGE_FETCH_TIMEOUT",
            "ALLOW_PRIVATE_UPSTREAMS",
        ] {
            assert!(told.contains(key), "{told}");
        }
    }
}
