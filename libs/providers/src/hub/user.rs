//! Whom a client asks for, in as many letters as a provider takes.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// The user as they are named, or a digest of 64 letters where that is longer than a provider takes: the same for the same
/// user in every request, which is all that a provider's search for abuse needs. OpenAI recommends a hash in any case
/// (API reference, `safety_identifier`).
pub(crate) fn short_user(user: &str, most: usize) -> Cow<'_, str> {
    if user.len() <= most || user.chars().count() <= most {
        return Cow::Borrowed(user);
    }
    let digest = Sha256::digest(user.as_bytes());
    Cow::Owned(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_becomes_a_digest_and_a_short_one_stays() {
        let (short, long) = ("ü".repeat(64), "u".repeat(65));
        assert_eq!(short_user(&short, 64), short);
        let digest = short_user(&long, 64);
        assert_eq!((digest.len(), digest == short_user(&long, 64)), (64, true));
        assert!(digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(digest, short_user(&"u".repeat(66), 64));
        // FIPS 180-4 as everybody has it.
        assert_eq!(short_user("abc", 2), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
