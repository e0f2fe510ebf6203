//! Retrieval without a chat.

mod create;

pub(crate) use create::create;
