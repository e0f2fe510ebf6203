//! Whether the committed `.sqlx` is what the database says about today's statements.
//!
//! The crates are compiled from `.sqlx` without a database, so a statement that was changed without it is only found
//! by asking a database: one that is made from today's migrations.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use config::Secret;
use pgserver::SharedCluster;
use store::testing::{RoleName, TestDatabase};

use crate::{Finding, Workspace};

const FOLDER: &str = ".sqlx";
const PACKAGE: &str = "ragmux-store";

/// File names and what is in them.
type Files = BTreeMap<String, Vec<u8>>;

/// Compares the committed data with fresh data.
///
/// # Errors
///
/// When no database can be started, or a statement is not valid on it.
pub async fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let fresh = describe(workspace).await?;
    let committed = read(&workspace.root.join(FOLDER))?;
    Ok(compare(&committed, &fresh))
}

/// Replaces the committed data; returns how many statements there are.
///
/// # Errors
///
/// As [`check`], and when the folder cannot be written.
pub async fn write(workspace: &Workspace) -> anyhow::Result<usize> {
    let fresh = describe(workspace).await?;
    let folder = workspace.root.join(FOLDER);
    fs::create_dir_all(&folder)?;
    for name in read(&folder)?.keys().filter(|name| !fresh.contains_key(*name)) {
        fs::remove_file(folder.join(name))?;
    }
    for (name, bytes) in &fresh {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(fresh.len())
}

/// Lets the compiler ask a database of its own about every statement.
async fn describe(workspace: &Workspace) -> anyhow::Result<Files> {
    let server = SharedCluster::acquire().await?;
    let database = TestDatabase::migrated(&Secret::new(server.url().expose())).await?;
    let folder = tempfile::tempdir()?;
    // Apart from the ordinary builds, whose artefacts would all be out of date afterwards.
    let target = workspace.target.join("tidy-sqlx");
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).args(["-p", PACKAGE, "--target-dir"]).arg(&target).current_dir(&workspace.root);
        command
    };
    // The macros write only when the crate is compiled.
    run(cargo(&["clean", "--quiet"]))?;
    let mut check = cargo(&["check", "--quiet", "--features", "testing"]);
    check
        .env("SQLX_OFFLINE", "false")
        .env("SQLX_OFFLINE_DIR", folder.path())
        .env("DATABASE_URL", database.url(RoleName::Owner).expose());
    run(check)?;
    let files = read(folder.path())?;
    ensure!(!files.is_empty(), "the compiler has described no statement");
    Ok(files)
}

fn run(mut command: Command) -> anyhow::Result<()> {
    let status = command.status().context("cargo cannot be run")?;
    ensure!(status.success(), "cargo failed ({status})");
    Ok(())
}

fn read(folder: &Path) -> anyhow::Result<Files> {
    let entries = fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let paths: Vec<PathBuf> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    let mut files = Files::new();
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "json")) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.insert(name, fs::read(path)?);
    }
    Ok(files)
}

fn compare(committed: &Files, fresh: &Files) -> Vec<Finding> {
    let finding = |name: &str, problem: &str| Finding::about(&format!("{FOLDER}/{name}"), problem);
    let fresher = fresh.iter().filter_map(|(name, bytes)| match committed.get(name) {
        None => Some(finding(name, &format!("missing, for the statement {}", statement(bytes)))),
        Some(old) if old != bytes => Some(finding(name, "stale: the database describes the statement differently")),
        Some(_) => None,
    });
    let superfluous = committed.keys().filter(|name| !fresh.contains_key(*name));
    fresher.chain(superfluous.map(|name| finding(name, "superfluous: no statement has this data"))).collect()
}

/// The beginning of the statement, for people.
fn statement(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().find_map(|line| line.trim().strip_prefix("\"query\":")).unwrap_or_default();
    line.trim().chars().take(70).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_stale_and_superfluous_data_is_named() {
        let files = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect::<Files>()
        };
        let committed = files(&[("a.json", "1"), ("b.json", "1"), ("c.json", "1")]);
        let fresh = files(&[("a.json", "1"), ("b.json", "2"), ("d.json", "{\n  \"query\": \"SELECT 1\",\n}")]);
        let found: Vec<String> = compare(&committed, &fresh).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                ".sqlx/b.json: stale: the database describes the statement differently",
                ".sqlx/d.json: missing, for the statement \"SELECT 1\",",
                ".sqlx/c.json: superfluous: no statement has this data",
            ]
        );
    }
}
