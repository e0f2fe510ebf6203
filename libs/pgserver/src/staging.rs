//! Folders for work that is renamed into place when it is done.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::PgServerError;

/// A new name in `dir`. It is never used twice, because a program of a killed process may go on working in its folder
/// for a while.
pub(crate) fn staging_folder(dir: &Path, prefix: &str) -> PathBuf {
    dir.join(format!("{prefix}{}.partial", hex::encode(rand::random::<[u8; 6]>())))
}

/// Removes what killed processes left in `dir`. A leftover in which somebody still works may resist; the next start
/// removes it.
pub(crate) fn clear_leftovers(dir: &Path, prefix: &str) -> Result<(), PgServerError> {
    let entries = fs::read_dir(dir).map_err(PgServerError::io("listing", dir))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(prefix)
            && name.ends_with(".partial")
            && let Err(error) = remove_tree(&entry.path())
        {
            tracing::debug!(%error, "half-done work of an earlier run could not be removed yet");
        }
    }
    Ok(())
}

/// Removes a tree if it is there.
pub(crate) fn remove_tree(dir: &Path) -> Result<(), PgServerError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(PgServerError::io("removing", dir)(error)),
        _ => Ok(()),
    }
}
