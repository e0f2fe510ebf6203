//! Where a model is, as the services that call it need to know.

use domain::{ConnectionId, ProviderType, Secret};
use vault::{OpenError, Vault};

use crate::connections;

/// A connection's address and sealed credential.
#[derive(Clone, Debug)]
pub struct UpstreamTarget {
    /// Which connection.
    pub connection: ConnectionId,
    /// Which API it speaks.
    pub provider: ProviderType,
    /// Its base URL.
    pub base_url: String,
    /// The model's name there.
    pub model: String,
    /// The credential as the vault sealed it, bound to `model_connections`, the connection's id and
    /// `credential_sealed`.
    pub credential_sealed: Option<Vec<u8>>,
}

impl UpstreamTarget {
    /// Opens the credential; `None` for a connection without one.
    ///
    /// # Errors
    /// When it was sealed with a key this process does not have, or for another place.
    pub fn open_credential(&self, vault: &Vault) -> Result<Option<Secret>, OpenError> {
        connections::open(self.connection, self.credential_sealed.as_deref(), vault)
    }

    /// A target of the columns that hold it; `None` for a provider this build does not know.
    pub(crate) fn new(
        connection: i64,
        provider: &str,
        base_url: String,
        model: String,
        credential_sealed: Option<Vec<u8>>,
    ) -> Option<Self> {
        let provider = ProviderType::parse(provider)?;
        Some(Self { connection: ConnectionId(connection), provider, base_url, model, credential_sealed })
    }
}
