//! Failures of the ledger as a caller sees them.

use domain::Kind;
use store::StoreError;

/// Why a call could be neither admitted nor denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The database is away or too slow; nothing was sent upstream. Trying later helps.
    #[error("admission is not available")]
    Unavailable,
    /// The process is shutting down.
    #[error("the process is shutting down")]
    ShuttingDown,
    /// A fault of ours; the log has it.
    #[error("admission failed")]
    Internal,
}

impl LedgerError {
    /// What a face makes of it.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Unavailable | Self::ShuttingDown => Kind::Unavailable,
            Self::Internal => Kind::Internal,
        }
    }
}

impl From<&StoreError> for LedgerError {
    fn from(error: &StoreError) -> Self {
        if error.is_transient() { Self::Unavailable } else { Self::Internal }
    }
}
