//! A PgBouncer before a database, in either of its modes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context;
use reqwest::Url;
use store::testing::{RoleName, TestDatabase};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::port::quiet_port;
use crate::wait::until;

/// Where Debian puts it, beside what `PATH` says.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// What a session of the server is given out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// A connection.
    Session,
    /// A transaction: the next one of the same connection may meet another session.
    Transaction,
}

impl PoolMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
        }
    }
}

/// A running PgBouncer. It ends with the value.
pub struct Pooler {
    address: String,
    log: PathBuf,
    _child: Child,
    _folder: TempDir,
}

impl Pooler {
    /// Starts one before a database's server, with so many sessions for each role. `None` on a machine without PgBouncer,
    /// which is said aloud: the test is then skipped. In CI it is an error.
    ///
    /// # Errors
    /// When it does not start; its log is in the message.
    pub async fn start(database: &TestDatabase, mode: PoolMode, sessions: u32) -> anyhow::Result<Option<Self>> {
        let Some(program) = program() else {
            anyhow::ensure!(
                std::env::var_os("CI").is_none(),
                "pgbouncer is not installed, and CI must not skip a test"
            );
            eprintln!("SKIPPED: pgbouncer is not installed (Debian: apt-get install pgbouncer)");
            return Ok(None);
        };
        let folder = tempfile::tempdir()?;
        // It gives up being root before it reads what is here.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let roles = [RoleName::Owner, RoleName::Edge, RoleName::Backend];
        let urls = roles.map(|role| Url::parse(database.url(role).expose()));
        let mut users = String::new();
        let mut server = String::new();
        for url in urls {
            let url = url?;
            let host = url.host_str().context("the database has no host")?;
            server = format!("host={host} port={}", url.port().unwrap_or(5432));
            users.push_str(&format!("\"{}\" \"{}\"\n", url.username(), url.password().unwrap_or_default()));
        }
        let (port, log) = (quiet_port()?, folder.path().join("pgbouncer.log"));
        let users_file = folder.path().join("users.txt");
        fs::write(&users_file, users)?;
        let settings = format!(
            "[databases]\n* = {server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\npool_mode = {}\ndefault_pool_size = {sessions}\nmax_client_conn = 1000\n",
            users_file.display(),
            mode.as_str()
        );
        let settings_file = folder.path().join("pgbouncer.ini");
        fs::write(&settings_file, settings)?;
        let output = fs::File::create(&log)?;
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        let child = command
            .arg(&settings_file)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .context("pgbouncer cannot be started")?;
        let pooler = Self { address: format!("127.0.0.1:{port}"), log, _child: child, _folder: folder };
        until("pgbouncer listens", || async { Ok(TcpStream::connect(&pooler.address).await.is_ok()) })
            .await
            .with_context(|| fs::read_to_string(&pooler.log).unwrap_or_default())?;
        Ok(Some(pooler))
    }

    /// A role's URL that leads through it.
    ///
    /// # Errors
    /// When the database has no address.
    pub fn url(&self, database: &TestDatabase, role: RoleName) -> anyhow::Result<String> {
        let url = Url::parse(database.url(role).expose())?;
        let (user, password) = (url.username(), url.password().unwrap_or_default());
        Ok(format!("postgres://{user}:{password}@{}{}", self.address, url.path()))
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    named.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
}
