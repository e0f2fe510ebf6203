//! Everything that is said to PostgreSQL.
//!
//! All SQL of the product is in this crate: checked `sqlx` macros, one function a statement, in a file named after its
//! entity. Statements that touch a tenant's rows filter by it, and every lease, window and expiry is decided by the
//! database's clock. Text built at run time exists only for the vector tables ([`ingest`], [`vectors`], [`switches`]) and
//! the ledger calls ([`ledger`]), from integers, uuids and hexadecimal alone, and for filters ([`filters`]), whose values
//! are parameters.
//!
//! [`Store`] is the handle; [`schema`] knows the migrations; [`provision`] prepares an empty database; `testing` (a
//! feature) gives every test a database of its own.

pub mod audit;
pub mod blobs;
mod bounded;
pub mod canary;
pub mod config_log;
pub mod connections;
pub mod denials;
pub mod document_stores;
pub mod documents;
mod error;
pub mod filters;
pub mod ingest;
pub mod instances;
pub mod ledger;
pub mod lexical;
pub mod logins;
mod pool;
pub mod prices;
pub mod principals;
pub mod projects;
pub mod provision;
pub mod queue;
mod reach;
pub mod removals;
pub mod rollups;
pub mod routes;
pub mod routing;
pub mod schema;
pub mod search;
pub mod sessions;
pub mod switches;
pub mod targets;
#[cfg(feature = "testing")]
pub mod testing;
pub mod uploads;
pub mod usage;
pub mod users;
pub mod vectors;

pub use error::{MigrateError, StoreError};
pub use pool::{DatabaseFacts, Listener, Store, Topic};
pub use reach::Reach;
