//! As little of an HTTP/1.1 client as a load generator needs: what it costs is the same in every leg that is compared,
//! and small beside what is measured.

mod connection;
mod head;
mod pieces;

pub(crate) use connection::Connection;
pub(crate) use head::{Framing, Head};
