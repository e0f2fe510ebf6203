//! The settings of the admin service.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use config::{Database, Env, Logging, PrivateUpstreams, Secret, SecretKey, Shutdown, Size};
use store::logins::LoginLimits;

use crate::auth::policy;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Everything the admin service reads from its environment.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where PostgreSQL is, as the backend's role.
    pub database: Database,
    /// The same as the role that migrates: `MIGRATE_DATABASE_URL`, or `DATABASE_URL`.
    pub migrate_database: Database,
    /// The key that seals credentials.
    pub secret_key: SecretKey,
    /// The log.
    pub logging: Logging,
    /// The budgets of a stop.
    pub shutdown: Shutdown,
    /// `ADMIN_LISTEN`: the JSON API and the HTTP probes.
    pub listen: SocketAddr,
    /// `ADMIN_GRPC_LISTEN`: gRPC health.
    pub grpc_listen: SocketAddr,
    /// `ADMIN_USER` and `ADMIN_PASSWORD`: the first administrator, made when there is nobody.
    pub first_user: Option<FirstUser>,
    /// `SESSION_TTL`: how long a session lasts.
    pub session_ttl: Duration,
    /// `LOGIN_USER_LIMIT_PER_MIN`, `LOGIN_RATE_LIMIT_PER_MIN`, `LOGIN_LOCKOUT_FAILURES` and `LOGIN_LOCKOUT_MINUTES`.
    pub login_limits: LoginLimits,
    /// `MAX_UPLOAD_MB`: the most bytes of a file.
    pub max_upload: Size,
    /// `MAX_PENDING_DOCUMENTS`: waiting documents at which uploads are refused.
    pub max_pending_documents: i64,
    /// Which addresses connections may lead to.
    pub private_upstreams: PrivateUpstreams,
}

/// The administrator that a first start makes.
#[derive(Clone, Debug)]
pub struct FirstUser {
    /// `ADMIN_USER`.
    pub username: String,
    /// `ADMIN_PASSWORD`.
    pub password: Secret,
}

impl FirstUser {
    fn read(env: &mut Env) -> Option<Self> {
        let username = env.optional_text("ADMIN_USER");
        let password = env.secret("ADMIN_PASSWORD");
        if let Some(problem) = username.as_deref().and_then(policy::problem_with_name) {
            env.reject("ADMIN_USER", username.as_deref(), problem);
        }
        if let Some(problem) = password.as_ref().and_then(policy::problem_with_password) {
            env.reject("ADMIN_PASSWORD", None, problem);
        }
        match (username, password) {
            (Some(username), Some(password)) => Some(Self { username, password }),
            (None, None) => None,
            (Some(_), None) => {
                env.reject("ADMIN_USER", None, "needs ADMIN_PASSWORD as well");
                None
            }
            (None, Some(_)) => {
                env.reject("ADMIN_PASSWORD", None, "needs ADMIN_USER as well");
                None
            }
        }
    }
}

impl runtime::Settings for Settings {
    fn read(env: &mut Env) -> Self {
        let database = Database::read(env);
        Self {
            migrate_database: database.with_url_from(env, "MIGRATE_DATABASE_URL"),
            database,
            secret_key: SecretKey::read(env),
            logging: Logging::read(env),
            shutdown: Shutdown::read(env),
            listen: env.listen("ADMIN_LISTEN", (Ipv4Addr::UNSPECIFIED, 8764)),
            grpc_listen: env.listen("ADMIN_GRPC_LISTEN", (Ipv4Addr::UNSPECIFIED, 8766)),
            first_user: FirstUser::read(env),
            session_ttl: env.duration("SESSION_TTL", 24 * HOUR, MINUTE..=90 * 24 * HOUR),
            login_limits: LoginLimits {
                user_per_minute: env.number("LOGIN_USER_LIMIT_PER_MIN", 5, 1..=1000),
                address_per_minute: env.number("LOGIN_RATE_LIMIT_PER_MIN", 10, 1..=10_000),
                lockout_failures: env.number("LOGIN_LOCKOUT_FAILURES", 20, 1..=10_000),
                lockout: MINUTE * env.number("LOGIN_LOCKOUT_MINUTES", 15, 1..=1440),
            },
            max_upload: env.mebibytes("MAX_UPLOAD_MB", 50, 1..=1024),
            max_pending_documents: env.number("MAX_PENDING_DOCUMENTS", 1024, 1..=1_000_000),
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

#[cfg(test)]
mod tests {
    use runtime::Settings as _;

    use super::*;

    #[test]
    fn only_the_database_must_be_named() {
        let mut env = Env::of([("DATABASE_URL", "postgres://u@db/n")]);
        let settings = Settings::read(&mut env);
        env.finish().unwrap();
        assert_eq!(settings.migrate_database.url.expose(), settings.database.url.expose());
        assert_eq!(settings.listen.to_string(), "0.0.0.0:8764");
        assert_eq!(settings.grpc_listen.to_string(), "0.0.0.0:8766");
        assert_eq!((settings.max_upload, settings.max_pending_documents), (Size::mebibytes(50), 1024));
        assert_eq!(settings.session_ttl, 24 * HOUR);
        assert!(settings.first_user.is_none());
    }

    #[test]
    fn every_mistake_is_told_and_no_password_is_shown() {
        let mut env = Env::of([
            ("ADMIN_LISTEN", "here"),
            ("ADMIN_USER", "Root User"),
            ("ADMIN_PASSWORD", "hunter2"),
            ("MAX_UPLOAD_MB", "0"),
            ("MAX_PENDING_DOCUMENTS", "none"),
            ("LOGIN_LOCKOUT_MINUTES", "-1"),
            ("SESSION_TTL", "1s"),
        ]);
        Settings::read(&mut env);
        let told = env.finish().unwrap_err().to_string();
        for key in [
            "DATABASE_URL",
            "ADMIN_LISTEN",
            "ADMIN_USER",
            "ADMIN_PASSWORD",
            "MAX_UPLOAD_MB",
            "MAX_PENDING_DOCUMENTS",
            "LOGIN_LOCKOUT_MINUTES",
            "SESSION_TTL",
        ] {
            assert!(told.contains(key), "{key} in {told}");
        }
        assert!(!told.contains("hunter2"), "{told}");
    }

    #[test]
    fn one_half_of_the_first_user_is_a_mistake() {
        for (key, value) in [("ADMIN_USER", "root"), ("ADMIN_PASSWORD", "correct horse battery")] {
            let mut env = Env::of([("DATABASE_URL", "postgres://u@db/n"), (key, value)]);
            Settings::read(&mut env);
            assert!(env.finish().unwrap_err().to_string().contains("as well"), "{key}");
        }
    }
}
