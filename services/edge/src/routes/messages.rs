//! `/v1/messages`, Anthropic's API.

mod count_tokens;
mod create;

pub(crate) use count_tokens::count_tokens;
pub(crate) use create::create;
