//! Hashing and checking passwords with argon2id, a few at a time.

use std::time::Duration;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use domain::Secret;
use runtime::{Blocking, BlockingError};

use crate::error::ApiError;

/// Each takes a core and 19 MiB for a while; more at once would only take them from everything else.
const AT_ONCE: usize = 2;

/// How long to wait for one's turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Works on passwords away from the threads that serve.
#[derive(Clone)]
pub(crate) struct Passwords {
    blocking: Blocking,
    decoy: Secret,
}

impl Passwords {
    /// Prepares the hash that names without a user are checked against.
    pub(crate) fn new() -> Result<Self, ApiError> {
        let nobody: [u8; 32] = rand::random();
        Ok(Self { blocking: Blocking::new(AT_ONCE, PATIENCE), decoy: hash(&nobody)? })
    }

    /// The hash of a password, in the PHC string format, with a salt of its own.
    pub(crate) async fn hash(&self, password: Secret) -> Result<Secret, ApiError> {
        self.work(move || hash(password.expose().as_bytes())).await?
    }

    /// Whether a password is the one that was hashed. Without a hash the answer is no and takes as long.
    pub(crate) async fn verify(&self, stored: Option<Secret>, password: Secret) -> Result<bool, ApiError> {
        let (against, exists) = match stored {
            Some(stored) => (stored, true),
            None => (self.decoy.clone(), false),
        };
        let fits = self
            .work(move || {
                let parsed = PasswordHash::new(against.expose()).map_err(ApiError::internal)?;
                Ok::<_, ApiError>(Argon2::default().verify_password(password.expose().as_bytes(), &parsed).is_ok())
            })
            .await??;
        Ok(fits && exists)
    }

    /// Runs work when there is room for it.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
        self.blocking.run(work).await.map_err(|error| match error {
            BlockingError::Busy => ApiError::Busy,
            BlockingError::Broken(_) => ApiError::internal(error),
        })
    }
}

fn hash(password: &[u8]) -> Result<Secret, ApiError> {
    let hash = Argon2::default().hash_password(password).map_err(ApiError::internal)?;
    Ok(Secret::new(hash.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_fits_its_own_hash_only() {
        let passwords = Passwords::new().unwrap();
        let password = || Secret::new("correct horse battery");
        let hash = passwords.hash(password()).await.unwrap();
        assert!(hash.expose().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        assert_ne!(passwords.hash(password()).await.unwrap().expose(), hash.expose(), "salted");
        assert!(passwords.verify(Some(hash.clone()), password()).await.unwrap());
        assert!(!passwords.verify(Some(hash), Secret::new("correct horse batterz")).await.unwrap());
        assert!(!passwords.verify(None, password()).await.unwrap());
    }

    #[tokio::test]
    async fn a_hash_that_is_none_is_a_fault_and_no_success() {
        let passwords = Passwords::new().unwrap();
        let checked = passwords.verify(Some(Secret::new("plain")), Secret::new("plain")).await;
        assert!(matches!(checked, Err(ApiError::Internal(_))));
    }
}
