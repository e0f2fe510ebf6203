//! Python clients in a virtual environment of pinned packages, made once for a checkout.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use tokio::process::Command;
use tokio::sync::OnceCell;

static ENVIRONMENT: OnceCell<PathBuf> = OnceCell::const_new();

/// Runs a script of `integration/python` and reads the JSON it prints.
pub(crate) async fn run(
    script: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> anyhow::Result<serde_json::Value> {
    let python = ENVIRONMENT.get_or_try_init(virtual_environment).await?;
    let output = Command::new(python)
        .arg(folder().join(script))
        .args(arguments)
        .env("NO_PROXY", "*")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{script} ended with {}:\n{errors}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("{script} printed no JSON:\n{errors}"))
}

/// The interpreter of the environment. Its folder is named after the list of packages, so that a changed list makes a
/// new one, and gets its name only when it is complete.
async fn virtual_environment() -> anyhow::Result<PathBuf> {
    let requirements = folder().join("requirements.txt");
    let list = std::fs::read(&requirements)?;
    let target = std::env::current_exe()?;
    let target = target.ancestors().nth(3).context("this test is not in a target folder")?;
    let home = target.join(format!("python-{:08x}", fingerprint(&list)));
    let python = home.join("bin/python");
    if python.is_file() {
        return Ok(python);
    }
    let making = target.join(format!("python-making-{}", std::process::id()));
    succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&making)).await?;
    let mut install = Command::new(making.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"]);
    succeed(install.arg(&requirements)).await?;
    // Another test may have been faster; then its environment is as good.
    if std::fs::rename(&making, &home).is_err() {
        std::fs::remove_dir_all(&making)?;
    }
    Ok(python)
}

async fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().await?;
    anyhow::ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// FNV-1a: enough to tell one list of packages from another.
fn fingerprint(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}
