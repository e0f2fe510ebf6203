//! Why a part of a search has no answer. Nobody but the log is told, so nothing here quotes the query or what a provider
//! said of it.

use providers::UpstreamError;
use store::StoreError;

use crate::connection::AddressUnreadable;
use crate::search::CredentialUnreadable;

/// A part of a search that was left out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error("it took too long")]
    TooLong,
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    #[error("the model's connection cannot be used")]
    Credential(#[from] CredentialUnreadable),
    #[error("the model's connection cannot be used")]
    Address(#[from] AddressUnreadable),
    #[error("the model cannot be asked")]
    Upstream(#[from] UpstreamError),
    #[error("the model answered without a vector")]
    NoVector,
    #[error("the model answered with {answered} dimensions, and the store has {of_store}")]
    Width { answered: usize, of_store: i32 },
}

impl PartError {
    /// The status that a client would get of a failed provider.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Upstream(error) => Some(error.status()),
            _ => None,
        }
    }
}
