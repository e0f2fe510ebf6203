//! OpenAI's API from before chats, Completions: a text is given and goes on. It is passed on between its own clients and
//! servers and translated to no other: what is given need not be a conversation, or text at all.

mod answer;
mod echo;
mod request;

pub use request::{CompletionRequest, Prompt};

pub(crate) use answer::read_answer;
pub(crate) use echo::{Echoed, Repeats};

#[cfg(test)]
mod tests;
