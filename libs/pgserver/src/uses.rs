//! Which homes use an unpacked server, so that the last one to go can take it away.
//!
//! Each home leaves a file named after its path, holding that path, in `uses` beside the unpacked tree. A file whose
//! home has been deleted by hand counts for nothing.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::error::PgServerError;
use crate::home::{make_folder, path_hash};

fn note(parent: &Path, place: &Path) -> PathBuf {
    parent.join("uses").join(path_hash(place))
}

/// Whether the home at `place` is noted.
pub(crate) fn is_noted(parent: &Path, place: &Path) -> bool {
    note(parent, place).is_file()
}

/// Notes the home at `place`.
pub(crate) fn add(parent: &Path, place: &Path) -> Result<(), PgServerError> {
    make_folder(&parent.join("uses"), 0o755)?;
    let note = note(parent, place);
    fs::write(&note, place.as_os_str().as_bytes()).map_err(PgServerError::io("writing", &note))
}

/// Forgets the home at `place`; returns whether another one remains.
pub(crate) fn remove(parent: &Path, place: &Path) -> Result<bool, PgServerError> {
    let own = note(parent, place);
    let dir = parent.join("uses");
    let Ok(notes) = fs::read_dir(&dir) else { return Ok(false) };
    let mut others_remain = false;
    for entry in notes.flatten() {
        let path = entry.path();
        let home = PathBuf::from(OsString::from_vec(fs::read(&path).unwrap_or_default()));
        if path == own || fs::symlink_metadata(&home).is_err() {
            fs::remove_file(&path).map_err(PgServerError::io("removing", &path))?;
        } else {
            others_remain = true;
        }
    }
    Ok(others_remain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_homes_that_still_exist_keep_the_server() {
        let scratch = tempfile::tempdir().unwrap();
        let [parent, one, two] = ["parent", "one", "two"].map(|name| scratch.path().join(name));
        for home in [&one, &two] {
            fs::create_dir(home).unwrap();
            add(&parent, home).unwrap();
        }
        assert!(is_noted(&parent, &one));
        assert!(remove(&parent, &one).unwrap(), "the second home is still there");
        assert!(!is_noted(&parent, &one));
        add(&parent, &one).unwrap();
        fs::remove_dir(&two).unwrap();
        assert!(!remove(&parent, &one).unwrap(), "the second home was deleted by hand");
    }
}
