//! Chat calls in any dialect of clients: what is done between the request body and the last byte of the answer.

mod answer;
mod itinerary;
mod prepare;
mod relay;

pub(crate) use answer::{Asked, answer};
