//! `ragmux reset`: remove everything that an installation made.

use anyhow::bail;
use pgserver::Home;

use crate::installation;
use crate::programs::KEY_FILE;
use crate::state_dir::StateDir;
use crate::status;
use crate::terminal::{confirm, is_interactive, program, say};

/// Removes the database and the state folder.
///
/// # Errors
///
/// One sentence while a copy runs, or when nobody can be asked and `--yes` was not given.
pub(crate) async fn run(dir: &StateDir, yes: bool) -> anyhow::Result<()> {
    let place = dir.path().display();
    if !dir.is_used() {
        say(&format!("there is no installation in {place}"));
        return Ok(());
    }
    // Held until everything is gone, so that no copy starts in the middle.
    let lock = match dir.lock().await? {
        Ok(lock) => lock,
        Err(holder) => bail!("a copy is running in {place} ({holder}); stop it first with `{} down`", program()),
    };
    if !yes {
        if !is_interactive() {
            bail!("reset removes the database, its documents and all keys of {place}; say --yes if that is meant");
        }
        if !confirm(&format!("Remove the database, its documents and all keys of {place}?")).await {
            say("nothing was removed");
            return Ok(());
        }
    }
    if dir.path().join("postgres").symlink_metadata().is_ok() {
        Home::open(dir.path())?.remove().await?;
    }
    dir.remove(|name| installation::is_file(name) || name == status::FILE || name == KEY_FILE)?;
    drop(lock);
    say(&format!("removed everything of {place}"));
    Ok(())
}
