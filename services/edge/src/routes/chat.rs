//! Chat completions.

mod create;

pub(crate) use create::create;
