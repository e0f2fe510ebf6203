//! Finding passages: the analyzer that cuts text into terms, BM25 over arrays of postings, and the fusion of ranked
//! lists.
//!
//! [`analyzer`] is the one place where text becomes terms: the worker calls it for chunks, searches call it for
//! queries, and the database stores what it says. [`bm25`] and [`fusion`] are pure arithmetic over what the store
//! answers.

pub mod analyzer;
pub mod bm25;
pub mod fusion;
