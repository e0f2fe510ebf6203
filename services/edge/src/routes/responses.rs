//! `/v1/responses`, OpenAI's API, as far as it needs no memory of earlier answers.

mod create;
mod get;

pub(crate) use create::create;
pub(crate) use get::get;
