//! Creating a cluster's data folder, once.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use config::Secret;
use tokio::time::timeout;

use crate::account::{Account, server_command};
use crate::error::{PgServerError, says_disk_full};
use crate::home::make_folder;
use crate::server_log::reason;
use crate::staging::{clear_leftovers, remove_tree, staging_folder};
use crate::{ClusterOptions, Installation};

/// The superuser's password, beside the data.
const PASSWORD_FILE: &str = "password";

/// The beginning of the names of half-made data folders.
const STAGING_PREFIX: &str = "initdb-";

/// Makes `<dir>/data` unless it is there, and returns the superuser's password.
///
/// The work happens in a folder of its own that is renamed when it is done. The password lies beside the data, readable
/// for the caller only.
pub(crate) async fn ensure_data(
    installation: &Installation,
    dir: &Path,
    account: Option<&Account>,
    options: &ClusterOptions,
) -> Result<Secret, PgServerError> {
    let data = dir.join("data");
    clear_leftovers(dir, STAGING_PREFIX)?;
    if data.join("PG_VERSION").is_file() {
        return read_password(dir).ok_or_else(|| PgServerError::PasswordMissing { dir: dir.to_owned() });
    }
    let password = Secret::new(hex::encode(rand::random::<[u8; 16]>()));
    remove_tree(&data)?;
    write_private(&dir.join(PASSWORD_FILE), &password)?;

    let staging = staging_folder(dir, STAGING_PREFIX);
    let outcome = create(installation, &staging, &password, account, options).await;
    let moved = outcome.and_then(|staged| fs::rename(&staged, &data).map_err(PgServerError::io("creating", &data)));
    let cleared = remove_tree(&staging);
    moved.and(cleared).map_err(|error| error.about(dir))?;
    Ok(password)
}

async fn create(
    installation: &Installation,
    staging: &Path,
    password: &Secret,
    account: Option<&Account>,
    options: &ClusterOptions,
) -> Result<PathBuf, PgServerError> {
    let data = staging.join("data");
    let password_file = staging.join(PASSWORD_FILE);
    make_folder(staging, 0o700)?;
    write_private(&password_file, password)?;
    if let Some(account) = account {
        account.give(&password_file)?;
        account.give(staging)?;
    }
    let program = installation.program("initdb");
    let mut command = server_command(&program, account);
    command
        .args(["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"])
        .arg("--pwfile")
        .arg(&password_file)
        .arg("--pgdata")
        .arg(&data)
        .kill_on_drop(true);
    if !options.durable {
        command.arg("--no-sync");
    }
    let failed = |detail: String| PgServerError::InitFailed { dir: staging.to_owned(), detail };
    let output = match timeout(options.start_deadline, command.output()).await {
        Ok(output) => output.map_err(PgServerError::io("running", &program))?,
        Err(_) => return Err(failed(format!("no end after {} s", options.start_deadline.as_secs()))),
    };
    if output.status.success() {
        return Ok(data);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    if says_disk_full(&words) {
        return Err(PgServerError::DiskFull { dir: staging.to_owned() });
    }
    Err(failed(reason(&words)))
}

/// The superuser's password of the cluster in `dir`.
pub(crate) fn read_password(dir: &Path) -> Option<Secret> {
    let password = fs::read_to_string(dir.join(PASSWORD_FILE)).ok()?;
    (!password.is_empty()).then(|| password.into())
}

fn write_private(path: &Path, secret: &Secret) -> Result<(), PgServerError> {
    let staged = path.with_extension("new");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&staged)
        .and_then(|mut file| file.write_all(secret.expose().as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&staged, path));
    written.map_err(PgServerError::io("writing", path))
}
