//! The ring of keys, sealing and opening.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use domain::Secret;

use crate::key::Key;
use crate::key_file::{self, Origin};
use crate::{KeyError, KeyId, OpenError, Place, SealError};

const FORMAT_VERSION: u8 = 1;
const NONCE_LENGTH: usize = 12;

/// Where the current key came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `SECRET_KEY` or `SECRET_KEY_FILE`.
    Env,
    /// The key file that was there already.
    File(PathBuf),
    /// The key file that this process has just made.
    Generated(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env => f.write_str("env"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Generated(path) => write!(f, "generated {}", path.display()),
        }
    }
}

/// The keys of this process. Cloning is cheap and shares them.
#[derive(Clone)]
pub struct Vault {
    ring: Arc<Ring>,
    sealing: KeyId,
}

struct Ring {
    current: Key,
    previous: Option<Key>,
    source: Source,
}

impl Vault {
    /// The vault of the given settings: `SECRET_KEY` and `SECRET_KEY_PREVIOUS`, each 64 hexadecimal digits, or else
    /// the file `secret.key` in `data_dir`, which is made when it is not there. The folder is not touched when a key is
    /// given. The current key seals until [`Vault::seals_with`] says otherwise.
    ///
    /// # Errors
    ///
    /// A key that is none, or a key file that can neither be read nor made.
    pub fn load(current: Option<&Secret>, previous: Option<&Secret>, data_dir: &Path) -> Result<Self, KeyError> {
        let (current, source) = match current {
            Some(text) => (read_key(text, "SECRET_KEY")?, Source::Env),
            None => match key_file::read_or_make(data_dir)? {
                (key, path, Origin::Found) => (key, Source::File(path)),
                (key, path, Origin::Made) => (key, Source::Generated(path)),
            },
        };
        let previous = previous.map(|text| read_key(text, "SECRET_KEY_PREVIOUS")).transpose()?;
        let sealing = current.id();
        Ok(Self { ring: Arc::new(Ring { current, previous, source }), sealing })
    }

    /// Where the current key came from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.ring.source
    }

    /// A sentence for the log when the operator should know more about the key than that it is there.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        match self.source() {
            Source::Generated(path) => Some(format!(
                "made a new key in {}; every host makes its own, so set SECRET_KEY before running more than one",
                path.display()
            )),
            Source::Env | Source::File(_) => None,
        }
    }

    /// The ids of all keys that open here, the current one first.
    #[must_use]
    pub fn key_ids(&self) -> Vec<KeyId> {
        let mut ids: Vec<KeyId> = self.keys().map(Key::id).collect();
        ids.dedup();
        ids
    }

    /// The id of the key that seals.
    #[must_use]
    pub fn sealing_key_id(&self) -> KeyId {
        self.sealing
    }

    /// The same keys, sealing with the one of the given id: the database says which, not the environment, so that all
    /// processes change over at one moment.
    ///
    /// # Errors
    ///
    /// [`KeyError::NotHeld`] when no key here has that id.
    pub fn seals_with(&self, id: KeyId) -> Result<Self, KeyError> {
        let key = self.keys().find(|key| key.id() == id).ok_or(KeyError::NotHeld(id))?;
        Ok(Self { ring: Arc::clone(&self.ring), sealing: key.id() })
    }

    /// Seals a text for a place.
    ///
    /// # Errors
    ///
    /// [`SealError`] for a text beyond the cipher's limit of 64 GiB.
    pub fn seal(&self, place: &Place, plaintext: &Secret) -> Result<Vec<u8>, SealError> {
        self.seal_with_nonce(place, plaintext, rand::random())
    }

    fn seal_with_nonce(
        &self,
        place: &Place,
        plaintext: &Secret,
        nonce: [u8; NONCE_LENGTH],
    ) -> Result<Vec<u8>, SealError> {
        let key = self.keys().find(|key| key.id() == self.sealing).ok_or(SealError)?;
        let payload = Payload { msg: plaintext.expose().as_bytes(), aad: &place.associated_data(key.id()) };
        let ciphertext = cipher(key).encrypt(&Nonce::from(nonce), payload).map_err(|_| SealError)?;
        let mut sealed = Vec::with_capacity(1 + KeyId::LENGTH + NONCE_LENGTH + ciphertext.len());
        sealed.push(FORMAT_VERSION);
        sealed.extend_from_slice(key.id().as_bytes());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&ciphertext);
        Ok(sealed)
    }

    /// Opens what was sealed for a place, with whichever key of the ring sealed it.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says whether the bytes are no sealed value, the key is not held, or the value does not belong
    /// there.
    pub fn open(&self, place: &Place, sealed: &[u8]) -> Result<Secret, OpenError> {
        let (id, rest) = split_header(sealed)?;
        let key = self.keys().find(|key| key.id() == id).ok_or(OpenError::UnknownKey(id))?;
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE_LENGTH>().ok_or(OpenError::Malformed)?;
        let payload = Payload { msg: ciphertext, aad: &place.associated_data(id) };
        let plaintext = cipher(key).decrypt(&Nonce::from(*nonce), payload).map_err(|_| OpenError::Tampered)?;
        // Only texts are sealed, so bytes that are none were not sealed by this crate.
        String::from_utf8(plaintext).map(Secret::new).map_err(|_| OpenError::Malformed)
    }

    /// The id of the key that sealed a value, read from the value without opening it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Malformed`] when the bytes are no sealed value.
    pub fn key_id_of(sealed: &[u8]) -> Result<KeyId, OpenError> {
        split_header(sealed).map(|(id, _)| id)
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        [Some(&self.ring.current), self.ring.previous.as_ref()].into_iter().flatten()
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("source", self.source()).field("key_ids", &self.key_ids()).finish_non_exhaustive()
    }
}

fn read_key(text: &Secret, name: &'static str) -> Result<Key, KeyError> {
    Key::from_hex(text.expose()).ok_or(KeyError::Malformed { name })
}

fn cipher(key: &Key) -> Aes256Gcm {
    Aes256Gcm::new(key.bytes().into())
}

/// Splits sealed bytes after the key id.
fn split_header(sealed: &[u8]) -> Result<(KeyId, &[u8]), OpenError> {
    let (version, rest) = sealed.split_first().ok_or(OpenError::Malformed)?;
    if *version != FORMAT_VERSION {
        return Err(OpenError::Malformed);
    }
    let (id, rest) = rest.split_first_chunk::<{ KeyId::LENGTH }>().ok_or(OpenError::Malformed)?;
    Ok((KeyId::from_bytes(*id), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const NEW: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

    fn vault(current: &str, previous: Option<&str>) -> Vault {
        let nowhere = Path::new("/does/not/exist");
        Vault::load(Some(&Secret::new(current)), previous.map(Secret::new).as_ref(), nowhere).unwrap()
    }

    fn place() -> Place {
        Place::new("model_connections", 42, "credential")
    }

    /// Computed with another implementation (Python's `cryptography`) from the description of the format.
    #[test]
    fn sealed_bytes_are_as_described() {
        let vault = vault(OLD, None);
        assert_eq!(vault.sealing_key_id().to_string(), KEY_ID);
        let nonce = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
        let sealed = vault.seal_with_nonce(&place(), &Secret::new("sk-test-ü"), nonce).unwrap();
        assert_eq!(hex::encode(&sealed), SEALED);
        assert_eq!(vault.open(&place(), &sealed).unwrap().expose(), "sk-test-ü");
    }

    const KEY_ID: &str = "9eb95190";
    const SEALED: &str = "019eb95190000102030405060708090a0b3469fb6fa096b6364efd3a74d8f44345b8e020e187c257b09822";

    #[test]
    fn what_is_sealed_opens_at_its_place_only() {
        let vault = vault(OLD, None);
        for text in ["", "sk-secret", &"x".repeat(100_000)] {
            let sealed = vault.seal(&place(), &Secret::new(text)).unwrap();
            assert_eq!(vault.open(&place(), &sealed).unwrap().expose(), text);
            for elsewhere in [
                Place::new("projects", 42, "credential"),
                Place::new("model_connections", 43, "credential"),
                Place::new("model_connections", 42, "cache_secret"),
            ] {
                assert_eq!(vault.open(&elsewhere, &sealed).unwrap_err(), OpenError::Tampered);
            }
        }
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        let vault = vault(OLD, Some(NEW));
        let sealed = vault.seal(&place(), &Secret::new("secret")).unwrap();
        for position in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[position] ^= 1;
            let expected = match position {
                0 => OpenError::Malformed,
                1..=4 => OpenError::UnknownKey(Vault::key_id_of(&changed).unwrap()),
                _ => OpenError::Tampered,
            };
            assert_eq!(vault.open(&place(), &changed).unwrap_err(), expected, "byte {position}");
        }
        for length in 0..sealed.len() {
            assert!(vault.open(&place(), &sealed[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn a_value_whose_header_names_another_key_of_the_ring_does_not_open() {
        let vault = vault(OLD, Some(NEW));
        let mut sealed = vault.seal(&place(), &Secret::new("secret")).unwrap();
        sealed[1..5].copy_from_slice(vault.key_ids()[1].as_bytes());
        assert_eq!(vault.open(&place(), &sealed).unwrap_err(), OpenError::Tampered);
    }

    #[test]
    fn the_same_text_is_never_sealed_to_the_same_bytes() {
        let vault = vault(OLD, None);
        let text = Secret::new("secret");
        assert_ne!(vault.seal(&place(), &text), vault.seal(&place(), &text));
    }

    #[test]
    fn any_key_of_the_ring_opens_and_the_chosen_one_seals() {
        let (old, both, new) = (vault(OLD, None), vault(NEW, Some(OLD)), vault(NEW, None));
        let text = Secret::new("secret");
        let [new_id, old_id] = both.key_ids()[..] else { panic!("two keys") };

        let by_old = both.seals_with(old_id).unwrap().seal(&place(), &text).unwrap();
        assert_eq!(Vault::key_id_of(&by_old), Ok(old_id));
        assert_eq!(old.open(&place(), &by_old).unwrap().expose(), "secret");
        assert_eq!(both.open(&place(), &by_old).unwrap().expose(), "secret");
        assert_eq!(new.open(&place(), &by_old).unwrap_err(), OpenError::UnknownKey(old_id));

        let by_new = both.seal(&place(), &text).unwrap();
        assert_eq!(Vault::key_id_of(&by_new), Ok(new_id));
        assert_eq!(new.open(&place(), &by_new).unwrap().expose(), "secret");
        assert!(matches!(old.seals_with(new_id), Err(KeyError::NotHeld(id)) if id == new_id));
    }

    #[test]
    fn the_same_key_twice_is_one_key() {
        assert_eq!(vault(OLD, Some(OLD)).key_ids().len(), 1);
    }

    #[test]
    fn a_key_that_is_none_is_refused_by_name() {
        let [good, bad] = [OLD, "0011"].map(Secret::new);
        let nowhere = Path::new("/does/not/exist");
        let error = Vault::load(Some(&bad), None, nowhere).unwrap_err();
        assert_eq!(error.to_string(), "SECRET_KEY is not 64 hexadecimal digits");
        let error = Vault::load(Some(&good), Some(&bad), nowhere).unwrap_err();
        assert_eq!(error.to_string(), "SECRET_KEY_PREVIOUS is not 64 hexadecimal digits");
    }

    #[test]
    fn debug_shows_no_key() {
        let shown = format!("{:?}", vault(OLD, None));
        assert!(shown.contains(KEY_ID) && !shown.contains(&OLD[..16]), "{shown}");
    }
}
