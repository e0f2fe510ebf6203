//! What tests stand on: a database of one's own and waiting by condition.
//!
//! Only tests and `integration` depend on this crate. Everything it starts is real: the pinned PostgreSQL, and a
//! migrated database with the three roles of an installation for every test.

mod database;
mod wait;

pub use database::{database, postgres_program, unmigrated_database};
pub use store::testing::{LoggedCall, RoleName, TestDatabase, TierTotals};
pub use wait::{DEADLINE, eventually, until};
