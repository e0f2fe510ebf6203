//! What can go wrong with keys and sealed values. No message holds any part of a key or of a sealed text.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::KeyId;

/// Why there is no usable key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The key from the environment is not 64 hexadecimal digits.
    #[error("{name} is not 64 hexadecimal digits")]
    Malformed {
        /// `SECRET_KEY` or `SECRET_KEY_PREVIOUS`.
        name: &'static str,
    },
    /// The key file holds something else.
    #[error("{} does not hold 64 hexadecimal digits; put the original key back, or set SECRET_KEY", path.display())]
    MalformedFile {
        /// The key file.
        path: PathBuf,
    },
    /// The key file cannot be read or made.
    #[error("{} cannot be read or made; set SECRET_KEY, or make DATA_DIR a folder that can be written", path.display())]
    File {
        /// The key file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The ring has no such key.
    #[error("this process does not hold the key {0} that is to seal; give it both SECRET_KEY and SECRET_KEY_PREVIOUS")]
    NotHeld(KeyId),
}

/// Sealing failed: the text is longer than the cipher can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the text cannot be sealed")]
pub struct SealError;

/// Why a sealed value does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The bytes are not a sealed value of a known format.
    #[error("the value is not a sealed one")]
    Malformed,
    /// It was sealed with a key that this process does not hold.
    #[error("the value was sealed with the key {0}, which this process does not hold")]
    UnknownKey(KeyId),
    /// It was changed, or it belongs to another place.
    #[error("the value was changed, or it belongs to another place")]
    Tampered,
}
