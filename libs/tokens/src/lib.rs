//! How many tokens a text is worth to a model.
//!
//! Two questions are answered: the exact count for the model families whose vocabulary is public ([`count`]), and an
//! [`estimate`] from the kinds of characters for all others, which is calibrated to lie rather above the truth because
//! it is used to reserve money. Texts over [`EXACT_LIMIT_BYTES`] are estimated upward in either case.
//!
//! Everything is pure and synchronous. A vocabulary is loaded when the first text of its family is counted, which takes
//! some tens of megabytes and milliseconds; a process that never counts pays nothing. Callers inside a runtime put
//! large texts on a blocking pool.

mod chat;
mod count;
mod decode;
mod estimate;
mod family;
mod image;
mod output;
mod script;

pub use chat::{MESSAGE_OVERHEAD, REPLY_PRIMING, count_messages};
pub use count::{EXACT_LIMIT_BYTES, count, is_loaded};
pub use decode::decode;
pub use estimate::estimate;
pub use family::Family;
pub use image::ImageTokens;
pub use output::most_output;
