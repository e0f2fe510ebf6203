//! The processes of the installation.

pub(crate) mod list;
