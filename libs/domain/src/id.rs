//! Typed identifiers, so that a store id cannot be passed where a project id is meant.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! row_id {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl From<i64> for $name {
            fn from(value: i64) -> Self {
                Self(value)
            }
        }

        impl From<$name> for i64 {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

row_id! {
    /// A person who signs in to the admin service.
    UserId;
    /// A project: the tenant that is metered and billed.
    ProjectId;
    /// An API key of any kind. The id survives rotation of the secret.
    ApiKeyId;
    /// A connection to a model provider.
    ConnectionId;
    /// A public model name of a project.
    RouteId;
    /// A document store.
    StoreId;
    /// The stored bytes of an upload.
    BlobId;
    /// An uploaded document.
    DocumentId;
    /// A passage of one content version of a document.
    ChunkId;
    /// One embedding model as reached through one connection, at one width.
    EmbeddingRevisionId;
}

macro_rules! uuid_id {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id, version 7 (RFC 9562): sortable by the time it was made.
            #[must_use]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

uuid_id! {
    /// One client request; also the key of its ledger entry.
    RequestId;
    /// One life of one process.
    InstanceId;
}
