//! One key and the short name it goes by.

use std::fmt;
use std::str::FromStr;

use domain::Secret;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// The short public name of a key, 8 hexadecimal digits: it tells keys apart and gives nothing of them away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; KeyId::LENGTH]);

impl KeyId {
    pub(crate) const LENGTH: usize = 4;

    pub(crate) const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; Self::LENGTH];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

/// A 256-bit key. Its memory is wiped when it is dropped.
pub(crate) struct Key {
    bytes: Zeroizing<[u8; Key::LENGTH]>,
    id: KeyId,
}

impl Key {
    pub(crate) const LENGTH: usize = 32;

    /// The key that 64 hexadecimal digits stand for.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = Zeroizing::new([0; Self::LENGTH]);
        hex::decode_to_slice(text.trim(), &mut *bytes).ok()?;
        let id = key_id(&bytes);
        Some(Self { bytes, id })
    }

    /// A new random key as 64 hexadecimal digits.
    pub(crate) fn random_hex() -> Secret {
        let mut bytes = Zeroizing::new([0_u8; Self::LENGTH]);
        rand::fill(&mut bytes[..]);
        Secret::new(hex::encode(bytes.as_slice()))
    }

    pub(crate) const fn id(&self) -> KeyId {
        self.id
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::LENGTH] {
        &self.bytes
    }
}

/// The id is derived under a label of its own, so that it can never equal a hash that is used for something else.
fn key_id(key: &[u8; Key::LENGTH]) -> KeyId {
    let hash = Sha256::new().chain_update(b"ragmux key id v1\0").chain_update(key).finalize();
    let mut id = [0; KeyId::LENGTH];
    id.iter_mut().zip(hash.iter()).for_each(|(to, from)| *to = *from);
    KeyId(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_id_reads_as_it_is_shown() {
        let key = Key::from_hex(Key::random_hex().expose()).unwrap();
        assert_eq!(key.id().to_string().parse(), Ok(key.id()));
        assert!("0011".parse::<KeyId>().is_err());
        assert!("0011223g".parse::<KeyId>().is_err());
    }

    #[test]
    fn new_keys_differ() {
        assert_ne!(Key::random_hex().expose(), Key::random_hex().expose());
    }
}
