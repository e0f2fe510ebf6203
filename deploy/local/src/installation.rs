//! What one installation remembers between starts: secrets that were made for it, and choices that were made once.

use std::collections::BTreeSet;

use anyhow::Context as _;
use domain::Secret;
use serde::{Deserialize, Serialize};

use crate::models::Models;
use crate::state_dir::StateDir;

/// The beginning of the names of the files it is in: one for the private database, one for each other that was used.
const PREFIX: &str = "installation";

/// The name of the administrator that is made for a new database.
const ADMIN: &str = "admin";

/// What is remembered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Installation {
    #[serde(skip)]
    file: String,
    /// The password of the database roles.
    #[serde(with = "exposed")]
    pub(crate) database_password: Secret,
    pub(crate) admin_user: String,
    #[serde(with = "exposed")]
    pub(crate) admin_password: Secret,
    /// The project's key. The gateway itself keeps only its hash.
    #[serde(default, with = "exposed_option")]
    pub(crate) project_key: Option<Secret>,
    /// Whether the project was made here, or was about to be.
    #[serde(default)]
    pub(crate) project_begun: bool,
    /// The stores that the sample documents were loaded into.
    #[serde(default)]
    pub(crate) samples_in: BTreeSet<i64>,
    /// Which models are connected, once that was decided.
    #[serde(default)]
    pub(crate) models: Option<Models>,
}

impl Installation {
    /// Reads what is remembered about a database (`None` for the private one), or makes new secrets and remembers them.
    /// `ADMIN_USER` and `ADMIN_PASSWORD` win, since they are about a database that may have people in it already.
    pub(crate) fn open(
        dir: &StateDir,
        database: Option<&str>,
        admin: (Option<String>, Option<Secret>),
    ) -> anyhow::Result<Self> {
        let file = file_name(database);
        let found = Self::find(dir, &file)?;
        let is_new = found.is_none();
        let mut installation = found.unwrap_or_else(|| Self {
            file: String::new(),
            database_password: random_word(),
            admin_user: ADMIN.to_owned(),
            admin_password: random_word(),
            project_key: None,
            project_begun: false,
            samples_in: BTreeSet::new(),
            models: None,
        });
        installation.file = file;
        let (user, password) = admin;
        let is_told = user.is_some() || password.is_some();
        installation.admin_user = user.unwrap_or(installation.admin_user);
        installation.admin_password = password.unwrap_or(installation.admin_password);
        if is_new || is_told {
            installation.save(dir)?;
        }
        Ok(installation)
    }

    fn find(dir: &StateDir, file: &str) -> anyhow::Result<Option<Self>> {
        let Some(text) = dir.read(file)? else { return Ok(None) };
        let found = serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged; restore it, or remove the installation with reset", dir.path().join(file).display())
        })?;
        Ok(Some(found))
    }

    /// Remembers it as it is now.
    pub(crate) fn save(&self, dir: &StateDir) -> anyhow::Result<()> {
        dir.write(&self.file, &serde_json::to_vec_pretty(self)?)
    }
}

/// Whether a file of the state folder is one of these.
pub(crate) fn is_file(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(".json")
}

fn file_name(database: Option<&str>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    match database {
        None => format!("{PREFIX}.json"),
        Some(database) => format!("{PREFIX}-{}.json", database.chars().map(plain).collect::<String>()),
    }
}

/// 120 random bits as letters and digits that nobody confuses.
fn random_word() -> Secret {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let letters = std::iter::repeat_with(|| LETTERS.get(usize::from(rand::random::<u8>() % 32)).copied());
    Secret::new(letters.take(24).map(|letter| letter.map_or('x', char::from)).collect::<String>())
}

/// A secret in a file that only its owner can read, or in an answer to its owner.
pub(crate) mod exposed {
    use domain::Secret;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(secret.expose())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        String::deserialize(deserializer).map(Secret::new)
    }
}

/// The same for one that may be absent.
pub(crate) mod exposed_option {
    use domain::Secret;
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(Secret::expose).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Secret::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, StateDir) {
        let parent = tempfile::tempdir().unwrap();
        let dir = StateDir::at(parent.path()).unwrap().create().unwrap();
        (parent, dir)
    }

    #[test]
    fn secrets_are_made_once_and_found_again() {
        let (_parent, dir) = folder();
        let mut made = Installation::open(&dir, None, (None, None)).unwrap();
        assert_eq!(made.admin_password.expose().len(), 24);
        assert_ne!(made.admin_password.expose(), made.database_password.expose());
        made.project_key = Some(Secret::new("sk-1"));
        made.save(&dir).unwrap();
        let found = Installation::open(&dir, None, (None, None)).unwrap();
        assert_eq!(found.admin_password.expose(), made.admin_password.expose());
        assert_eq!(found.project_key.unwrap().expose(), "sk-1");
    }

    #[test]
    fn a_given_login_wins_and_is_remembered() {
        let (_parent, dir) = folder();
        Installation::open(&dir, None, (None, None)).unwrap();
        let given = (Some("ann".to_owned()), Some(Secret::new("a-long-password")));
        Installation::open(&dir, None, given).unwrap();
        let found = Installation::open(&dir, None, (None, None)).unwrap();
        assert_eq!((found.admin_user.as_str(), found.admin_password.expose()), ("ann", "a-long-password"));
    }

    #[test]
    fn each_database_is_remembered_apart() {
        let (_parent, dir) = folder();
        let mut private = Installation::open(&dir, None, (None, None)).unwrap();
        private.samples_in.insert(1);
        private.save(&dir).unwrap();
        let other = Installation::open(&dir, Some("db.example:5432/a b"), (None, None)).unwrap();
        assert!(other.samples_in.is_empty());
        assert_eq!(other.file, "installation-db.example-5432-a-b.json");
        assert!(is_file(&private.file) && is_file(&other.file) && !is_file("status.json"));
        assert!(Installation::open(&dir, None, (None, None)).unwrap().samples_in.contains(&1));
    }

    #[test]
    fn a_damaged_file_is_named_and_left_alone() {
        let (_parent, dir) = folder();
        dir.write(&file_name(None), b"{").unwrap();
        let sentence = Installation::open(&dir, None, (None, None)).unwrap_err().to_string();
        assert!(sentence.contains("installation.json") && sentence.contains("damaged"), "{sentence}");
        assert_eq!(dir.read(&file_name(None)).unwrap().as_deref(), Some("{"));
    }
}
