//! The processes of an installation: their arguments, their whole environment, and where they listen.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::time::Duration;

use crate::database::Urls;
use crate::installation::Installation;
use crate::ports::Ports;
use crate::state_dir::StateDir;

/// This very program, even after its file was replaced by a newer build.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Longer than the budgets of a service's own stop are in sum (65 s), so that what is killed here hangs.
const SERVICE_STOP: Duration = Duration::from_secs(70);

/// The demonstration model lets answers finish for 3 s.
const UPSTREAM_STOP: Duration = Duration::from_secs(10);

/// What every process may know of the environment it was started in.
const INHERITED: [&str; 8] = ["PATH", "HOME", "TMPDIR", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_COLOR"];

/// Settings that the launcher decides whatever the environment says.
const DECIDED: [&str; 11] = [
    "DATABASE_URL",
    "MIGRATE_DATABASE_URL",
    "ADMIN_USER",
    "ADMIN_PASSWORD",
    "EDGE_LISTEN",
    "ADMIN_LISTEN",
    "ADMIN_GRPC_LISTEN",
    "WORKER_LISTEN",
    "HEALTH_GRPC_LISTEN",
    "CLUSTER_LISTEN",
    "DATA_DIR",
];

/// Settings that are about a database of somebody else's.
const OF_ANOTHER_DATABASE: [&str; 2] = ["DB_SCHEMA", "DB_POOLER"];

/// The key file that `vault` makes in the data folder.
pub(crate) const KEY_FILE: &str = "secret.key";

/// One process as it is to be run.
#[derive(Clone)]
pub(crate) struct Program {
    /// What it is called here and in `status`.
    pub(crate) name: &'static str,
    /// The word that chooses it, and its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Its environment, all of it.
    pub(crate) env: BTreeMap<OsString, OsString>,
    /// Listen addresses by what they are for.
    pub(crate) listen: BTreeMap<String, SocketAddr>,
    /// The page that answers 200 once it may get work.
    pub(crate) ready_url: String,
    /// How long an orderly stop may take before it is killed.
    pub(crate) stop_budget: Duration,
}

/// What the programs are made from.
pub(crate) struct Plan<'a> {
    pub(crate) dir: &'a StateDir,
    pub(crate) ports: Ports,
    pub(crate) urls: &'a Urls,
    /// Whether the database is a private one.
    pub(crate) is_private: bool,
    pub(crate) installation: &'a Installation,
    /// The environment of the launcher.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// The settings that the services know. The environment may set those that the launcher does not decide.
    pub(crate) settings: BTreeSet<&'static str>,
}

impl Plan<'_> {
    pub(crate) fn edge(&self) -> Program {
        let ports = self.ports;
        self.service("edge", ports.edge(), &[("health", ports.edge_health())])
            .with("DATABASE_URL", self.urls.edge.expose())
            .with("EDGE_LISTEN", ports.edge().to_string())
            .with("HEALTH_GRPC_LISTEN", ports.edge_health().to_string())
            // One edge has no peers.
            .with("CLUSTER_LISTEN", "")
    }

    pub(crate) fn worker(&self) -> Program {
        let ports = self.ports;
        self.service("ingestion-worker", ports.worker(), &[("health", ports.worker_health())])
            .with("DATABASE_URL", self.urls.backend.expose())
            .with("WORKER_LISTEN", ports.worker().to_string())
            .with("HEALTH_GRPC_LISTEN", ports.worker_health().to_string())
    }

    pub(crate) fn admin(&self) -> Program {
        let ports = self.ports;
        self.service("admin", ports.admin(), &[("grpc", ports.admin_grpc())])
            .with("DATABASE_URL", self.urls.backend.expose())
            .with("MIGRATE_DATABASE_URL", self.urls.owner.expose())
            .with("ADMIN_LISTEN", ports.admin().to_string())
            .with("ADMIN_GRPC_LISTEN", ports.admin_grpc().to_string())
            .with("ADMIN_USER", &self.installation.admin_user)
            .with("ADMIN_PASSWORD", self.installation.admin_password.expose())
    }

    pub(crate) fn upstream(&self) -> Program {
        let address = self.ports.upstream();
        Program {
            name: "upstream",
            arguments: vec!["upstream".into(), "--listen".into(), address.to_string().into()],
            env: self.inherited(INHERITED),
            listen: BTreeMap::from([("http".to_owned(), address)]),
            ready_url: format!("http://{address}/v1/models"),
            stop_budget: UPSTREAM_STOP,
        }
    }

    fn service(&self, name: &'static str, http: SocketAddr, others: &[(&str, SocketAddr)]) -> Program {
        let is_open = |key: &&str| !(DECIDED.contains(key) || self.is_private && OF_ANOTHER_DATABASE.contains(key));
        let open = self.settings.iter().copied().filter(is_open);
        let mut env = self.inherited(INHERITED);
        env.extend(self.inherited(open.clone()));
        env.extend(self.inherited(open.map(|key| format!("{key}_FILE"))));
        let mut listen = BTreeMap::from([("http".to_owned(), http)]);
        listen.extend(others.iter().map(|(what, address)| ((*what).to_owned(), *address)));
        let program = Program {
            name,
            arguments: vec![name.into()],
            env,
            listen,
            ready_url: format!("http://{http}/readyz"),
            stop_budget: SERVICE_STOP,
        };
        let program = program.with("DATA_DIR", self.dir.path());
        // The demonstration model and a local one are on this machine.
        let program = program.with_default("PRIVATE_UPSTREAM_ALLOWLIST", "127.0.0.1");
        let own_key = self.dir.path().join(KEY_FILE);
        if program.sets("SECRET_KEY") { program } else { program.with("SECRET_KEY_FILE", own_key) }
    }

    fn inherited(&self, keys: impl IntoIterator<Item = impl AsRef<OsStr>>) -> BTreeMap<OsString, OsString> {
        let keys = keys.into_iter().map(|key| key.as_ref().to_owned());
        keys.filter_map(|key| Some((key.clone(), self.environment.get(&key)?.clone()))).collect()
    }
}

impl Program {
    fn with(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.insert(key.into(), value.as_ref().to_owned());
        self
    }

    fn with_default(self, key: &str, value: &str) -> Self {
        if self.sets(key) { self } else { self.with(key, value) }
    }

    /// Whether the key or its file variant is set.
    fn sets(&self, key: &str) -> bool {
        let is_set = |key: &str| self.env.get(OsStr::new(key)).is_some_and(|value| !value.is_empty());
        is_set(key) || is_set(&format!("{key}_FILE"))
    }
}

#[cfg(test)]
mod tests {
    use domain::Secret;

    use super::*;

    fn program(environment: &[(&str, &str)]) -> Program {
        let parent = tempfile::tempdir().unwrap();
        let dir = StateDir::at(parent.path()).unwrap().create().unwrap();
        let url = |role: &str| Secret::new(format!("postgres://{role}@127.0.0.1/ragmux"));
        let urls = Urls { owner: url("owner"), edge: url("edge"), backend: url("backend") };
        let installation = Installation::open(&dir, None, (None, None)).unwrap();
        let environment = environment.iter().map(|(key, value)| (OsString::from(key), OsString::from(value))).collect();
        let settings = BTreeSet::from(["DATABASE_URL", "SECRET_KEY", "UPSTREAM_TIMEOUT", "EDGE_LISTEN"]);
        Plan {
            dir: &dir,
            ports: Ports::from_base(100),
            urls: &urls,
            is_private: true,
            installation: &installation,
            environment,
            settings,
        }
        .edge()
    }

    fn value(program: &Program, key: &str) -> Option<String> {
        program.env.get(OsStr::new(key)).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_service_sees_what_it_needs_and_nothing_else() {
        let program = program(&[("PATH", "/bin"), ("OPENAI_API_KEY", "sk-1"), ("DATABASE_URL", "postgres://other")]);
        assert_eq!(value(&program, "DATABASE_URL").unwrap(), "postgres://edge@127.0.0.1/ragmux");
        assert_eq!(value(&program, "EDGE_LISTEN").unwrap(), "127.0.0.1:101");
        assert_eq!(value(&program, "PATH").unwrap(), "/bin");
        assert_eq!(value(&program, "OPENAI_API_KEY"), None);
        assert!(value(&program, "SECRET_KEY_FILE").unwrap().ends_with("/secret.key"));
    }

    #[test]
    fn settings_of_the_environment_reach_the_services_unless_the_launcher_decides_them() {
        let program = program(&[
            ("UPSTREAM_TIMEOUT_FILE", "/f"),
            ("EDGE_LISTEN", ":1"),
            ("DATABASE_URL_FILE", "/g"),
            ("SECRET_KEY", "00"),
        ]);
        assert_eq!(value(&program, "UPSTREAM_TIMEOUT_FILE").unwrap(), "/f");
        assert_eq!(value(&program, "EDGE_LISTEN").unwrap(), "127.0.0.1:101");
        assert_eq!(value(&program, "DATABASE_URL_FILE"), None);
        assert_eq!((value(&program, "SECRET_KEY").unwrap().as_str(), value(&program, "SECRET_KEY_FILE")), ("00", None));
    }
}
