//! The key file of a host that was given no key.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use domain::Secret;
use zeroize::Zeroizing;

use crate::KeyError;
use crate::key::Key;

const NAME: &str = "secret.key";

/// More than a key and the white space an editor may add.
const LONGEST: u64 = 256;

/// Whether the key file was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Found,
    Made,
}

/// The key of the folder's key file, which is made when it is not there. Processes that do this at the same time get
/// the same key: each writes a file of its own and tries to link it to the name, which only one can.
pub(crate) fn read_or_make(folder: &Path) -> Result<(Key, PathBuf, Origin), KeyError> {
    let path = folder.join(NAME);
    let failed = |source| KeyError::File { path: path.clone(), source };
    let (text, origin) = match read(&path) {
        Ok(text) => (text, Origin::Found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let origin = make(folder, &path).map_err(failed)?;
            (read(&path).map_err(failed)?, origin)
        }
        Err(error) => return Err(failed(error)),
    };
    match Key::from_hex(text.expose()) {
        Some(key) => Ok((key, path, origin)),
        None => Err(KeyError::MalformedFile { path }),
    }
}

fn read(path: &Path) -> io::Result<Secret> {
    let mut text = Zeroizing::new(String::new());
    match File::open(path)?.take(LONGEST).read_to_string(&mut text) {
        Ok(_) => Ok(Secret::new(text.as_str())),
        // Not text: left to the caller, who says what should be there.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Secret::new("")),
        Err(error) => Err(error),
    }
}

fn make(folder: &Path, path: &Path) -> io::Result<Origin> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let aside = folder.join(format!("{NAME}.{:016x}", rand::random::<u64>()));
    let linked = write_aside(&aside).and_then(|()| std::fs::hard_link(&aside, path));
    let removed = std::fs::remove_file(&aside);
    let origin = match linked {
        Ok(()) => Origin::Made,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Origin::Found,
        Err(error) => return Err(error),
    };
    removed?;
    // The name must survive a power cut too: what is sealed from now on needs this key.
    File::open(folder)?.sync_all()?;
    Ok(origin)
}

fn write_aside(aside: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside)?;
    file.write_all(Key::random_hex().expose().as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;

    use crate::{KeyError, Source, Vault};

    fn load(folder: &std::path::Path) -> Result<Vault, KeyError> {
        Vault::load(None, None, folder)
    }

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("not/there/yet");
        let path = data_dir.join("secret.key");

        let made = load(&data_dir).unwrap();
        assert_eq!(made.source(), &Source::Generated(path.clone()));
        assert!(made.warning().unwrap().contains("set SECRET_KEY"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim().len(), 64);

        let found = load(&data_dir).unwrap();
        assert_eq!(found.source(), &Source::File(path));
        assert_eq!(found.warning(), None);
        assert_eq!(found.key_ids(), made.key_ids());
        assert_eq!(std::fs::read_dir(&data_dir).unwrap().count(), 1, "nothing is left beside the key");
    }

    #[test]
    fn racing_processes_agree_on_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let barrier = Barrier::new(16);
        let vaults: Vec<Vault> = std::thread::scope(|scope| {
            let race = || {
                barrier.wait();
                load(folder.path()).unwrap()
            };
            let racers: Vec<_> = (0..16).map(|_| scope.spawn(race)).collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let made = vaults.iter().filter(|vault| matches!(vault.source(), Source::Generated(_))).count();
        assert_eq!(made, 1);
        assert!(vaults.iter().all(|vault| vault.key_ids() == vaults[0].key_ids()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_holds_no_key_is_left_alone() {
        for content in [&b""[..], b"not a key", &[0xff; 64], &[b'a'; 100_000]] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("secret.key");
            std::fs::write(&path, content).unwrap();
            assert!(matches!(load(folder.path()), Err(KeyError::MalformedFile { path: named }) if named == path));
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = load(&file.join("data")).unwrap_err().to_string();
        assert!(error.contains("file/data/secret.key cannot be read or made; set SECRET_KEY"), "{error}");
    }
}
