//! The parts of a search that run side by side.

pub(crate) mod lexical;
pub(crate) mod vector;
