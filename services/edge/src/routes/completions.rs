//! OpenAI's API from before chats.

mod create;

pub(crate) use create::create;
