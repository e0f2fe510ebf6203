//! API keys: how they are made, recognised and looked up.
//!
//! A key is a prefix that says its kind, 37 random base62 characters (220 bits) and 6 characters that are the CRC-32 of
//! everything before them in base62. The checksum lets a mistyped key be refused without asking the database.

use std::fmt;

use rand::RngExt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::Secret;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const RANDOM_LEN: usize = 37;
const CHECKSUM_LEN: usize = 6;
const DISPLAY_PREFIX_LEN: usize = 15;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// The key of one project (`sk-proj-`).
    Project,
    /// A person's key, granted to projects (`sk-user-`).
    Gateway,
    /// A key for the admin API only (`sk-mgmt-`).
    Management,
}

impl KeyKind {
    /// The literal that keys of this kind begin with.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Project => "sk-proj-",
            Self::Gateway => "sk-user-",
            Self::Management => "sk-mgmt-",
        }
    }

    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Gateway => "gateway",
            Self::Management => "management",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Project, Self::Gateway, Self::Management].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What a key may be used for on the edge and on the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Chat, Messages, Responses and completions.
    Chat,
    /// Embeddings.
    Embeddings,
    /// The list of models.
    Models,
    /// Retrieval and reranking.
    Retrieve,
    /// Reading through the admin API.
    Read,
    /// Writing through the admin API.
    Write,
    /// Users, prices, retention and audit.
    Admin,
    /// Making and changing keys.
    Keys,
}

impl Scope {
    const ALL: [Self; 8] =
        [Self::Chat, Self::Embeddings, Self::Models, Self::Retrieve, Self::Read, Self::Write, Self::Admin, Self::Keys];

    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embeddings => "embeddings",
            Self::Models => "models",
            Self::Retrieve => "retrieve",
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
            Self::Keys => "keys",
        }
    }

    /// The scope of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }
}

/// SHA-256 of a key's text: what the database stores and looks up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of any secret text (keys, session tokens).
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(redacted)")
    }
}

/// Why a text is not an API key. No variant carries the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeyError {
    /// It does not begin with one of the known prefixes.
    #[error("the key does not begin with a known prefix")]
    Prefix,
    /// It is too short, too long or has characters no key has.
    #[error("the key is not 43 letters and digits after its prefix")]
    Shape,
    /// The last six characters do not fit the rest: a typing mistake.
    #[error("the key's checksum does not match: a character is wrong or missing")]
    Checksum,
}

/// A well-formed API key. Whether it exists is a question for the database.
#[derive(Clone, Debug)]
pub struct ApiKey {
    kind: KeyKind,
    text: Secret,
}

impl ApiKey {
    /// Makes a new key of this kind from the operating system's randomness.
    #[must_use]
    pub fn generate(kind: KeyKind) -> Self {
        let mut rng = rand::rng();
        let mut text = String::with_capacity(kind.prefix().len() + RANDOM_LEN + CHECKSUM_LEN);
        text.push_str(kind.prefix());
        for _ in 0..RANDOM_LEN {
            text.push(base62(rng.random_range(0..62)));
        }
        let checksum = checksum(&text);
        text.push_str(&checksum);
        Self { kind, text: Secret::new(text) }
    }

    /// Recognises a key by its shape and checksum.
    ///
    /// # Errors
    /// See [`ApiKeyError`].
    pub fn parse(text: &str) -> Result<Self, ApiKeyError> {
        let kind = [KeyKind::Project, KeyKind::Gateway, KeyKind::Management]
            .into_iter()
            .find(|kind| text.starts_with(kind.prefix()))
            .ok_or(ApiKeyError::Prefix)?;
        let body = text.strip_prefix(kind.prefix()).unwrap_or_default();
        if body.len() != RANDOM_LEN + CHECKSUM_LEN || !body.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(ApiKeyError::Shape);
        }
        let (head, tail) = text.split_at(text.len() - CHECKSUM_LEN);
        if bool::from(checksum(head).as_bytes().ct_eq(tail.as_bytes())) {
            Ok(Self { kind, text: Secret::new(text) })
        } else {
            Err(ApiKeyError::Checksum)
        }
    }

    /// What the key is for.
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// What the database looks it up by.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(self.text.expose())
    }

    /// The first 15 characters, which people may see in lists.
    #[must_use]
    pub fn display_prefix(&self) -> String {
        self.text.expose().chars().take(DISPLAY_PREFIX_LEN).collect()
    }

    /// The text, to be shown once to the person who made it.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.text
    }
}

fn base62(digit: usize) -> char {
    ALPHABET.get(digit).map_or('0', |b| char::from(*b))
}

fn checksum(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes()) as usize;
    let mut digits = ['0'; CHECKSUM_LEN];
    for slot in digits.iter_mut().rev() {
        *slot = base62(rest % 62);
        rest /= 62;
    }
    digits.iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_generated_key_parses_back_to_its_kind_and_hash() {
        for kind in [KeyKind::Project, KeyKind::Gateway, KeyKind::Management] {
            let key = ApiKey::generate(kind);
            let parsed = ApiKey::parse(key.secret().expose()).unwrap();
            assert_eq!(parsed.kind(), kind);
            assert_eq!(parsed.hash(), key.hash());
            assert_eq!(key.secret().expose().len(), kind.prefix().len() + 43);
            assert_eq!(key.display_prefix().len(), 15);
        }
    }

    #[test]
    fn what_is_not_a_key_is_told_apart() {
        assert_eq!(ApiKey::parse("").unwrap_err(), ApiKeyError::Prefix);
        assert_eq!(ApiKey::parse("sk-abc").unwrap_err(), ApiKeyError::Prefix);
        assert_eq!(ApiKey::parse("sk-proj-short").unwrap_err(), ApiKeyError::Shape);
        let long = format!("sk-proj-{}é", "a".repeat(41));
        assert_eq!(ApiKey::parse(&long).unwrap_err(), ApiKeyError::Shape);
    }

    proptest! {
        #[test]
        fn one_changed_character_is_always_noticed(position in 8usize..51, replacement in "[0-9A-Za-z]") {
            let key = ApiKey::generate(KeyKind::Project);
            let mut text = key.secret().expose().to_owned();
            prop_assume!(text[position..=position] != replacement);
            text.replace_range(position..=position, &replacement);
            prop_assert_eq!(ApiKey::parse(&text).unwrap_err(), ApiKeyError::Checksum);
        }

        #[test]
        fn any_text_is_answered_without_a_panic(text in ".{0,80}") {
            let _ = ApiKey::parse(&text);
        }
    }
}
