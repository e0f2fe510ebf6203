//! Chat completions.

mod create;
mod prepare;
mod relay;

pub(crate) use create::create;
