//! OpenAI's Responses API, as far as it needs no memory of earlier answers.

mod answer;
mod assemble;
mod bound;
mod calls;
mod conversation;
mod countable;
mod echo;
mod error;
mod event;
mod features;
#[cfg(test)]
mod golden_tests;
mod items;
mod kept;
mod lost;
mod reader;
mod request;
mod stream;
mod tools;
mod writer;

pub(crate) use answer::read_answer;
pub(crate) use echo::Echo;
pub(crate) use error::failure;
pub(crate) use reader::ResponseReader;
pub use request::ResponsesRequest;
pub(crate) use stream::PassingResponse;
pub(crate) use writer::ResponseWriter;
