//! Where binaries and data may lie.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

use crate::account::is_root;
use crate::error::PgServerError;
use crate::staging::remove_tree;
use crate::{Cluster, Installation};

/// Where root's files go. Everybody may enter it, which the server's user needs.
const SYSTEM_PARENT: &str = "/var/lib";

/// The place of one installation's database, found from its state folder.
///
/// For an ordinary user it is `<state dir>/postgres`. For root, `<state dir>/postgres` is a symbolic link to
/// `/var/lib/ragmux-<hash of the state dir's path>`, because the server then runs as a user that usually cannot enter
/// a home or a build folder.
#[derive(Debug, Clone)]
pub struct Home {
    /// The state folder's entry: the folder itself, or root's link to it.
    place: PathBuf,
    dir: PathBuf,
}

impl Home {
    /// Finds the place and makes it, with the state folder.
    ///
    /// # Errors
    ///
    /// [`PgServerError::OtherOwner`] when the state folder was used by root and is now used by somebody else or the
    /// other way round; otherwise what the file system says.
    pub fn open(state_dir: &Path) -> Result<Self, PgServerError> {
        fs::create_dir_all(state_dir).map_err(PgServerError::io("creating", state_dir))?;
        let state_dir = state_dir.canonicalize().map_err(PgServerError::io("resolving", state_dir))?;
        let own = state_dir.join("postgres");
        let is_link = match fs::symlink_metadata(&own) {
            Ok(found) => Some(found.is_symlink()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(PgServerError::io("reading", &own)(error)),
        };
        if is_link.is_some_and(|is_link| is_link != is_root()) {
            return Err(PgServerError::OtherOwner { dir: own });
        }
        if !is_root() {
            make_folder(&own, 0o700)?;
            return Ok(Self { dir: own.clone(), place: own });
        }
        let dir = Path::new(SYSTEM_PARENT).join(format!("ragmux-{}", path_hash(&state_dir)));
        make_folder(&dir, 0o755)?;
        point(&own, &dir)?;
        Ok(Self { place: own, dir })
    }

    /// The folder of the cluster: what [`crate::Cluster::open`] is given.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// One line for the user when the files are not inside the state folder.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        (self.place != self.dir).then(|| {
            format!(
                "running as root: PostgreSQL runs as another user, so its files are in {} (linked from {})",
                self.dir.display(),
                self.place.display()
            )
        })
    }

    /// Deletes the database, and the unpacked server too when no other state folder uses it. A server that a killed
    /// process left running is stopped first.
    ///
    /// # Errors
    ///
    /// [`PgServerError::AlreadyRunning`] when a living process has the cluster open; otherwise what the file system
    /// says.
    pub async fn remove(self) -> Result<(), PgServerError> {
        Cluster::stop_orphan(&self.dir).await?;
        Installation::release(&self).await?;
        let (place, dir) = (self.place.clone(), self.dir.clone());
        let removed = spawn_blocking(move || {
            remove_tree(&dir)?;
            if place == dir { Ok(()) } else { fs::remove_file(&place).map_err(PgServerError::io("removing", &place)) }
        });
        removed.await.map_err(PgServerError::interrupted(&self.dir))?
    }

    /// What stands for this home among the users of an installation.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// The folder that holds unpacked servers, shared by all state folders of this user where that is possible.
    pub(crate) fn installations(&self) -> PathBuf {
        if is_root() {
            return Path::new(SYSTEM_PARENT).join("ragmux-postgresql");
        }
        let absolute = |key: &str| std::env::var_os(key).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .map(|cache| cache.join("ragmux"))
            .filter(|cache| is_writable(cache))
            .unwrap_or_else(|| self.dir.clone())
    }
}

/// Whether files can be made in the folder, which is created if need be.
fn is_writable(dir: &Path) -> bool {
    fs::create_dir_all(dir).is_ok()
        && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

/// Makes a folder with exactly these permissions, whatever the umask.
pub(crate) fn make_folder(dir: &Path, mode: u32) -> Result<(), PgServerError> {
    fs::create_dir_all(dir).map_err(PgServerError::io("creating", dir))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(PgServerError::io("opening up", dir))
}

/// Makes `link` a symbolic link to `target`. Two processes may do this at once, for the same target.
fn point(link: &Path, target: &Path) -> Result<(), PgServerError> {
    if fs::read_link(link).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let staged = link.with_extension(format!("{:08x}.new", rand::random::<u32>()));
    std::os::unix::fs::symlink(target, &staged)
        .and_then(|()| fs::rename(&staged, link))
        .map_err(PgServerError::io("linking", link))
}

/// A short name for a path, the same in every process.
pub(crate) fn path_hash(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    hex::encode(digest).chars().take(16).collect()
}
