//! Seals the credentials that the database holds, so that the database alone gives none of them away.
//!
//! A [`Vault`] holds one or two keys, the ring: any of them opens, one seals. What it seals is bound to its place: the
//! table, row and column are authenticated with it, so a sealed value that is copied to another row does not open
//! there. Sealed bytes describe themselves: format version (1 byte), key id (4), nonce (12), then the ciphertext with
//! its tag (AES-256-GCM, NIST SP 800-38D, with a random 96-bit nonce). A key may so seal 2³² values before a repeated
//! nonce becomes likely enough to matter, far more than an installation has credentials.
//!
//! The key comes from the environment, or from a file that is made on first use. The [canary](Vault::canary) is a known
//! text, sealed and kept in the database: a process that cannot open it has the wrong key and must not go on.

mod canary;
mod error;
mod key;
mod key_file;
mod place;
mod vault;

pub use canary::CanaryMismatch;
pub use error::{KeyError, OpenError, SealError};
pub use key::KeyId;
pub use place::Place;
pub use vault::{Source, Vault};
