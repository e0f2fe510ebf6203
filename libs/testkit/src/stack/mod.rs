//! An installation of real processes in a few words: `Stack::builder().edges(3).workers(2).start()`.

mod admin;
mod process;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpListener;

pub use self::admin::{Admin, Project};
pub use self::process::{Process, Role};
use crate::{TestDatabase, database, http_client, unmigrated_database};

/// The administrator every stack has.
const ADMIN_USER: &str = "root";
const ADMIN_PASSWORD: &str = "correct horse battery";
/// The key that seals this installation's credentials.
const SECRET_KEY: &str = "5c1f0e9d3b7a4c6288e1f0a9b3d7c5e15c1f0e9d3b7a4c6288e1f0a9b3d7c5e1";

/// What to start.
pub struct Builder {
    edges: usize,
    workers: usize,
    admins: usize,
    migrated: bool,
    database: Option<TestDatabase>,
    upstream: upstream::Options,
    settings: BTreeMap<String, String>,
}

/// A running installation. Its processes end when it is dropped.
pub struct Stack {
    /// The database all of it uses.
    pub database: TestDatabase,
    /// The model provider, to be scripted.
    pub upstream: upstream::Handle,
    /// A client for whatever a test asks over HTTP.
    pub http: reqwest::Client,
    settings: BTreeMap<String, String>,
    folder: TempDir,
    processes: Vec<Process>,
}

impl Builder {
    /// How many edges.
    #[must_use]
    pub fn edges(mut self, count: usize) -> Self {
        self.edges = count;
        self
    }

    /// How many ingestion workers.
    #[must_use]
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// How many admin services; one unless said otherwise.
    #[must_use]
    pub fn admins(mut self, count: usize) -> Self {
        self.admins = count;
        self
    }

    /// Starts on a database without a schema: what is not `admin` waits.
    #[must_use]
    pub fn unmigrated(mut self) -> Self {
        self.migrated = false;
        self
    }

    /// Starts on this migrated database instead of one of the server that tests share.
    #[must_use]
    pub fn database(mut self, database: TestDatabase) -> Self {
        self.database = Some(database);
        self
    }

    /// How many calls the upstream's log keeps, where more are made than it would.
    #[must_use]
    pub fn remembering(mut self, calls: usize) -> Self {
        self.upstream.log_calls = calls;
        self
    }

    /// A setting for every process.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Starts everything and waits until it is ready.
    ///
    /// # Errors
    /// When something does not become ready; the end of its log is in the message.
    pub async fn start(self) -> anyhow::Result<Stack> {
        let migrated = self.migrated;
        let (admins, workers, edges) = (self.admins, self.workers, self.edges);
        let mut stack = self.prepare().await?;
        for (role, count) in [(Role::Admin, admins), (Role::Worker, workers), (Role::Edge, edges)] {
            for _ in 0..count {
                stack.spawn(role).await?;
            }
        }
        if migrated || admins > 0 {
            let http = stack.http.clone();
            for process in &mut stack.processes {
                process.ready(&http).await?;
            }
        }
        Ok(stack)
    }

    async fn prepare(self) -> anyhow::Result<Stack> {
        let database = match self.database {
            Some(database) => database,
            None if self.migrated => database().await?,
            None => unmigrated_database().await?,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = upstream::serve(listener, self.upstream)?;
        Ok(Stack {
            database,
            upstream,
            http: http_client()?,
            settings: self.settings,
            folder: tempfile::tempdir()?,
            processes: Vec::new(),
        })
    }
}

impl Stack {
    /// One admin service and nothing else, until more is asked for.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            edges: 0,
            workers: 0,
            admins: 1,
            migrated: true,
            database: None,
            upstream: upstream::Options::scripted(),
            settings: BTreeMap::new(),
        }
    }

    /// Starts one more process; does not wait for it. The answer is its place among all processes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn spawn(&mut self, role: Role) -> anyhow::Result<usize> {
        self.spawn_with(role, &[]).await
    }

    /// Starts one more process with settings of its own.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn spawn_with(&mut self, role: Role, settings: &[(&str, &str)]) -> anyhow::Result<usize> {
        let mut environment = self.environment(role);
        environment.extend(self.settings.clone());
        environment.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let number = self.processes.len();
        self.processes.push(Process::start(role, number, self.folder.path(), environment).await?);
        Ok(number)
    }

    fn environment(&self, role: Role) -> BTreeMap<String, String> {
        use store::testing::RoleName;
        let url = |role: RoleName| self.database.url(role).expose().to_owned();
        let mut environment = BTreeMap::from([
            ("SECRET_KEY".to_owned(), SECRET_KEY.to_owned()),
            ("PRIVATE_UPSTREAM_ALLOWLIST".to_owned(), "127.0.0.1".to_owned()),
            ("DB_ACQUIRE_TIMEOUT".to_owned(), "5s".to_owned()),
            ("LOG_FORMAT".to_owned(), "json".to_owned()),
            ("DATA_DIR".to_owned(), self.folder.path().display().to_string()),
        ]);
        match role {
            Role::Edge => {
                environment.insert("DATABASE_URL".to_owned(), url(RoleName::Edge));
            }
            Role::Worker => {
                environment.insert("DATABASE_URL".to_owned(), url(RoleName::Backend));
                environment.insert("INGEST_POLL_INTERVAL".to_owned(), "500ms".to_owned());
            }
            Role::Admin => {
                environment.insert("DATABASE_URL".to_owned(), url(RoleName::Backend));
                environment.insert("MIGRATE_DATABASE_URL".to_owned(), url(RoleName::Owner));
                environment.insert("ADMIN_USER".to_owned(), ADMIN_USER.to_owned());
                environment.insert("ADMIN_PASSWORD".to_owned(), ADMIN_PASSWORD.to_owned());
            }
        }
        environment
    }

    /// A process by its place among all.
    ///
    /// # Errors
    /// When there is none.
    pub fn process(&mut self, number: usize) -> anyhow::Result<&mut Process> {
        self.processes.get_mut(number).ok_or_else(|| anyhow::anyhow!("there is no process {number}"))
    }

    /// The nth process of a role, counting those that have ended.
    ///
    /// # Errors
    /// When there is none.
    pub fn nth(&self, role: Role, number: usize) -> anyhow::Result<&Process> {
        self.processes
            .iter()
            .filter(|process| process.role() == role)
            .nth(number)
            .ok_or_else(|| anyhow::anyhow!("there is no {role:?} {number}"))
    }

    /// The nth process of a role, to be ended.
    ///
    /// # Errors
    /// When there is none.
    pub fn nth_mut(&mut self, role: Role, number: usize) -> anyhow::Result<&mut Process> {
        self.processes
            .iter_mut()
            .filter(|process| process.role() == role)
            .nth(number)
            .ok_or_else(|| anyhow::anyhow!("there is no {role:?} {number}"))
    }

    /// Base URL of the nth edge, with `/v1`.
    ///
    /// # Errors
    /// When there is none.
    pub fn edge_url(&self, number: usize) -> anyhow::Result<String> {
        Ok(format!("{}/v1", self.nth(Role::Edge, number)?.url()))
    }

    /// Signs in to the first admin service.
    ///
    /// # Errors
    /// When that is refused.
    pub async fn admin(&self) -> anyhow::Result<Admin> {
        let url = self.nth(Role::Admin, 0)?.url();
        Admin::sign_in(self.http.clone(), &url, ADMIN_USER, ADMIN_PASSWORD).await
    }

    /// A project with a route `chat` to the upstream's `demo-chat`, a store embedded by its `demo-embed`, and a key.
    ///
    /// # Errors
    /// When the admin service refuses something.
    pub async fn project(&self, name: &str, settings: serde_json::Value) -> anyhow::Result<Project> {
        self.admin().await?.make_project(name, settings, &self.upstream.base_url()).await
    }

    /// Where this stack's files are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends every process in order and checks that each ended well.
    ///
    /// # Errors
    /// When one does not end in time or not with code 0.
    pub async fn shut_down(mut self) -> anyhow::Result<()> {
        for process in &mut self.processes {
            if process.is_running() {
                let status = process.stop(Duration::from_secs(90)).await?;
                anyhow::ensure!(status.success(), "{:?} ended with {status}\n{}", process.role(), process.log_tail());
            }
        }
        Ok(())
    }
}
