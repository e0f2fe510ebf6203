//! Moderations.

mod create;

pub(crate) use create::create;
