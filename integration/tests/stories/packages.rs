//! Clients from package registries: programs of `integration/python` and `integration/node` in environments of pinned
//! packages, each made once for a checkout.
//!
//! A machine without a way to a registry, or without Node, cannot run them: that is said in one line and is no failure,
//! except where `CI` is set.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// What installers say when it is the way to the registry that is missing.
const NO_WAY: [&str; 8] = [
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "Network is unreachable",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ENETUNREACH",
    "ETIMEDOUT",
];

/// The version of the `openai` package for Node. It depends on no other.
const OPENAI_FOR_NODE: &str = "openai@7.59.0";

/// A program, and the environment it runs in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    /// Of `integration/python`, with the SDKs of providers.
    Sdk(&'static str),
    /// Of `integration/python`, with frameworks that bring SDKs of their own choice.
    Framework(&'static str),
    /// Of `integration/node`.
    Node(&'static str),
}

impl Program {
    fn file(self) -> PathBuf {
        match self {
            Self::Sdk(name) | Self::Framework(name) => folder("python").join(name),
            Self::Node(name) => folder("node").join(name),
        }
    }

    /// What runs the program's file, and that file; none where the environment cannot be made.
    async fn command(self) -> anyhow::Result<Option<Command>> {
        static SDKS: OnceCell<Option<PathBuf>> = OnceCell::const_new();
        static FRAMEWORKS: OnceCell<Option<PathBuf>> = OnceCell::const_new();
        static NODE: OnceCell<Option<PathBuf>> = OnceCell::const_new();
        Ok(match self {
            Self::Sdk(_) => {
                SDKS.get_or_try_init(|| virtual_environment("requirements.txt")).await?.as_ref().map(|python| {
                    let mut command = Command::new(python);
                    command.arg(self.file());
                    command
                })
            }
            Self::Framework(_) => {
                FRAMEWORKS.get_or_try_init(|| virtual_environment("frameworks.txt")).await?.as_ref().map(|python| {
                    let mut command = Command::new(python);
                    command.arg(self.file());
                    command
                })
            }
            Self::Node(name) => match NODE.get_or_try_init(node_environment).await? {
                None => None,
                Some(home) => {
                    // Packages are found beside the program.
                    let copy = home.join(name);
                    tokio::fs::copy(self.file(), &copy).await?;
                    let mut command = Command::new("node");
                    command.arg(copy);
                    Some(command)
                }
            },
        })
    }
}

/// Runs a program and reads the JSON of the last line it prints; none on a machine that cannot run it.
pub(crate) async fn run(
    program: Program,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> anyhow::Result<Option<Value>> {
    let Some(mut command) = program.command().await? else { return Ok(None) };
    let output = command
        .args(arguments)
        .env("NO_PROXY", "*")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program:?} ended with {}:\n{errors}", output.status);
    // Some packages have something to say of their own.
    let last = output.stdout.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let said = serde_json::from_slice(last).with_context(|| format!("{program:?} printed no JSON:\n{errors}"))?;
    Ok(Some(said))
}

/// The interpreter of the environment with the packages of a list.
async fn virtual_environment(list: &str) -> anyhow::Result<Option<PathBuf>> {
    let list = folder("python").join(list);
    let home = home("python", &std::fs::read(&list)?)?;
    if !home.is_dir() {
        let making = making(&home);
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&making)).await?;
        let mut install = Command::new(making.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"]);
        if !installed(install.arg(&list)).await? {
            return Ok(None);
        }
        settle(&making, &home)?;
    }
    Ok(Some(home.join("bin/python")))
}

/// A folder in which Node finds its packages.
async fn node_environment() -> anyhow::Result<Option<PathBuf>> {
    if Command::new("npm").arg("--version").stdin(Stdio::null()).output().await.is_err() {
        skip("node and npm are not installed")?;
        return Ok(None);
    }
    let home = home("node", OPENAI_FOR_NODE.as_bytes())?;
    if !home.is_dir() {
        let making = making(&home);
        std::fs::create_dir_all(&making)?;
        let mut install = Command::new("npm");
        install.args(["install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]);
        if !installed(install.arg("--prefix").arg(&making).arg(OPENAI_FOR_NODE)).await? {
            return Ok(None);
        }
        settle(&making, &home)?;
    }
    Ok(Some(home))
}

/// Runs an installer. Not where it finds no registry.
async fn installed(command: &mut Command) -> anyhow::Result<bool> {
    let output = command.stdin(Stdio::null()).output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && NO_WAY.iter().any(|said| errors.contains(said)) {
        skip("no package registry can be reached")?;
        return Ok(false);
    }
    anyhow::ensure!(output.status.success(), "{command:?}: {errors}");
    Ok(true)
}

fn skip(reason: &str) -> anyhow::Result<()> {
    anyhow::ensure!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}, so clients from package registries did not run");
    Ok(())
}

async fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().await?;
    anyhow::ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The folder of an environment, named after its list of packages, so that a changed list makes a new one.
fn home(kind: &str, list: &[u8]) -> anyhow::Result<PathBuf> {
    let target = std::env::current_exe()?;
    let target = target.ancestors().nth(3).context("this test is not in a target folder")?;
    Ok(target.join(format!("{kind}-{:08x}", fingerprint(list))))
}

/// Where an environment is made; it gets its name only when it is complete.
fn making(home: &Path) -> PathBuf {
    home.with_extension(format!("making-{}", std::process::id()))
}

fn settle(making: &Path, home: &Path) -> anyhow::Result<()> {
    // Another test may have been faster; then its environment is as good.
    if std::fs::rename(making, home).is_err() {
        std::fs::remove_dir_all(making)?;
    }
    Ok(())
}

/// FNV-1a: enough to tell one list of packages from another.
fn fingerprint(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
