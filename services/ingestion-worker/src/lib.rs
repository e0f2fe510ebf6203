//! The ingestion worker: claims documents, parses them in processes of their own, cuts and embeds them, and makes them
//! searchable.
//!
//! [`parser`] is the parent's side of the parser process that `extract` describes.

pub mod parser;
