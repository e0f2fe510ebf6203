//! The vocabulary every other crate shares: ids, API keys, the redacted secret type, money, windows, roles, limits and
//! error kinds.
//!
//! Nothing in here does I/O or reads a clock. A rule that two services must agree on (what a key looks like, how a
//! price becomes a cost) lives here once.

mod api_key;
mod document;
mod error;
mod filter;
mod id;
mod limits;
mod money;
mod provider;
mod retrieval;
mod role;
mod search_tuning;
mod secret;
mod window;

pub use api_key::{ApiKey, ApiKeyError, KeyHash, KeyKind, Scope};
pub use document::{DocumentFailure, DocumentStatus};
pub use error::Kind;
pub use filter::{Condition, DocumentFilter, FilterError, Requirement, Scalar, Side};
pub use id::{
    ApiKeyId, BlobId, ChunkId, ConnectionId, DocumentId, EmbeddingRevisionId, InstanceId, ProjectId, RequestId,
    RouteId, StoreId, UserId,
};
pub use limits::{Enforcement, Limits};
pub use money::{NanoUsd, Price, PriceSnapshot};
pub use provider::{OutputField, ProviderType};
pub use retrieval::{RerankSettings, RetrievalSettings, RetrieveWhen};
pub use role::Role;
pub use search_tuning::SearchTuning;
pub use secret::Secret;
pub use window::{Tier, Window};
