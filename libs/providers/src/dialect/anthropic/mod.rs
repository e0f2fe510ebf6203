//! Anthropic's Messages API.

mod answer;
mod assemble;
mod calls;
mod conversation;
mod countable;
mod error;
mod features;
mod foreign;
#[cfg(test)]
mod golden_tests;
mod lost;
mod models;
#[cfg(test)]
mod models_tests;
mod outgoing;
mod reader;
mod request;
mod schema;
mod stream;
mod thinking;
mod usage;
mod writer;

pub(crate) use answer::{read_answer, read_count};
pub use assemble::AnthropicHeaders;
pub(crate) use error::failure;
pub use error::messages_error_type;
pub use features::costly_betas;
pub(crate) use outgoing::body;
pub(crate) use reader::{MessageReader, read_whole};
pub use request::MessagesRequest;
pub(crate) use stream::PassingMessage;
pub(crate) use writer::MessageWriter;
