//! The first administrator.

pub(crate) mod complete;
pub(crate) mod show;
