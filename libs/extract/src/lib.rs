//! From the bytes of a document to titled, paged, sectioned text, and from there to chunks.
//!
//! Everything here is synchronous and touches neither network nor database. [`detect`] decides a format from the first
//! bytes and is safe to call anywhere. [`extract`] runs third-party parsers over hostile input and therefore runs in a
//! process of its own: [`child`] is that process, [`protocol`] is what it speaks. [`settle`] keeps the saner of what two
//! engines made of a PDF. [`chunk`] cuts the result into
//! pieces for embedding.

mod archive;
pub mod child;
pub mod chunk;
mod decode;
mod detect;
mod emit;
mod format;
mod formats;
mod model;
pub mod protocol;
mod reading;
mod running;
mod sanity;

pub use detect::{HEAD_BYTES, detect};
pub use emit::{ExtractError, MAX_PAGE_TEXT_BYTES, MAX_PAGES, MAX_TEXT_BYTES, PageSink};
pub use format::Format;
pub use formats::extract;
pub use model::{Block, BlockKind, Extracted, Page, Section, Summary};
pub use reading::{End, Engine, Reading, conclude, is_doubtful, settle};
pub use sanity::Tally;
