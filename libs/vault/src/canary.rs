//! The check that this process has the key which the database was written with.

use domain::Secret;
use thiserror::Error;

use crate::{Place, SealError, Source, Vault};

const TEXT: &str = "ragmux canary v1";

/// The process has another key than the one the database was written with. Its text is for the operator: it says what
/// was found and the two ways out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "SECRET_KEY does not match the one this database was written with: the canary in instance_settings does not \
     decrypt (key source: {source_of_key}). Start with the original key, or run `ragmux-admin rotate-key` with the \
     original key in the environment"
)]
pub struct CanaryMismatch {
    /// Where this process has its key from.
    pub source_of_key: Source,
}

impl Vault {
    /// A fixed text, sealed: what `instance_settings` holds for later starts to open.
    ///
    /// # Errors
    ///
    /// None in practice; see [`Vault::seal`].
    pub fn canary(&self) -> Result<Vec<u8>, SealError> {
        self.seal(&place(), &Secret::new(TEXT))
    }

    /// Whether the canary that the database holds was sealed with a key of this vault.
    ///
    /// # Errors
    ///
    /// [`CanaryMismatch`], upon which the process must end before it touches a credential.
    pub fn check_canary(&self, canary: &[u8]) -> Result<(), CanaryMismatch> {
        match self.open(&place(), canary) {
            Ok(text) if text.expose() == TEXT => Ok(()),
            Ok(_) | Err(_) => Err(CanaryMismatch { source_of_key: self.source().clone() }),
        }
    }
}

fn place() -> Place {
    Place::new("instance_settings", "secret_canary", "value")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn vault(digit: &str, previous: Option<&str>) -> Vault {
        let key = |digit: &str| Secret::new(digit.repeat(64));
        Vault::load(Some(&key(digit)), previous.map(key).as_ref(), Path::new("/does/not/exist")).unwrap()
    }

    #[test]
    fn the_canary_opens_with_the_key_that_sealed_it() {
        let canary = vault("a", None).canary().unwrap();
        assert_eq!(vault("a", None).check_canary(&canary), Ok(()));
        assert_eq!(vault("b", Some("a")).check_canary(&canary), Ok(()), "during a rotation");
    }

    #[test]
    fn another_key_is_told_what_is_wrong_and_what_to_do() {
        let canary = vault("a", None).canary().unwrap();
        let mismatch = vault("b", None).check_canary(&canary).unwrap_err();
        assert_eq!(
            mismatch.to_string(),
            "SECRET_KEY does not match the one this database was written with: the canary in instance_settings does \
             not decrypt (key source: env). Start with the original key, or run `ragmux-admin rotate-key` with the \
             original key in the environment"
        );
    }

    #[test]
    fn a_wiped_data_folder_is_told_that_its_key_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let canary = Vault::load(None, None, folder.path()).unwrap().canary().unwrap();
        std::fs::remove_file(folder.path().join("secret.key")).unwrap();
        let mismatch = Vault::load(None, None, folder.path()).unwrap().check_canary(&canary).unwrap_err();
        assert!(mismatch.to_string().contains("(key source: generated "), "{mismatch}");
        let again = Vault::load(None, None, folder.path()).unwrap().check_canary(&canary).unwrap_err();
        assert!(again.to_string().contains("(key source: file "), "{again}");
    }

    #[test]
    fn another_sealed_text_is_no_canary() {
        let vault = vault("a", None);
        let other = vault.seal(&place(), &Secret::new("something else")).unwrap();
        assert!(vault.check_canary(&other).is_err());
        assert!(vault.check_canary(b"").is_err());
    }
}
