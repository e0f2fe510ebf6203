//! What tests stand on: a database of one's own, waiting by condition, and an installation of real processes.
//!
//! Only tests and `integration` depend on this crate. Everything it starts is real: the pinned PostgreSQL, a migrated
//! database with the three roles for every test, the services as processes of the shipped binary ([`Stack`]), and a
//! scripted upstream that speaks over real sockets.

mod database;
mod http;
mod pooler;
mod port;
mod private_server;
mod proxy;
mod stack;
mod standing;
mod wait;

pub use database::{database, postgres_program, unmigrated_database};
pub use domain::{
    ApiKey, ApiKeyId, ConnectionId, DocumentFilter, DocumentId, InstanceId, KeyKind, NanoUsd, Price, ProjectId,
    RequestId, RouteId, StoreId, Tier, UserId,
};
pub use http::http_client;
pub use pooler::{PoolMode, Pooler};
pub use private_server::PrivateServer;
pub use proxy::DatabaseProxy;
pub use stack::{Admin, Builder, Process, Project, Role, Stack};
pub use standing::standing;
pub use store::testing::{
    Cap, DocumentFacts, IngestTotals, LedgerWatch, LogRow, LoggedCall, Meter, RoleName, TestDatabase, TierCap, TierId,
    TierTotals, UsageRow, VectorWatch, WatchedCall, WatchedRow, work,
};
pub use wait::{DEADLINE, early_in_a_minute, eventually, until};
