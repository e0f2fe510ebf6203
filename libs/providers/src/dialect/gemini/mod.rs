//! Google's Gemini API, for providers only: no client asks by it.

mod embeddings;
mod error;
#[cfg(test)]
mod golden_tests;
mod models;
mod outgoing;
mod reader;
mod schema;
mod thinking;

pub(crate) use embeddings::{MOST_TEXTS, embed_body, embed_path, read_embedded};
pub(crate) use error::refusal;
pub(crate) use outgoing::body;
pub(crate) use reader::{GeminiReader, read_whole};

/// The media types of images that the models look at (Gemini API, Image understanding).
pub(crate) const IMAGE_TYPES: &[&str] = &["image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"];

/// The query that asks for server-sent events; without it a stream is one JSON array.
pub(crate) const STREAM_QUERY: &str = "alt=sse";

/// Whether a URL leads to a file that the API has already. It fetches no others.
pub(crate) fn is_file(url: &str) -> bool {
    url.starts_with("https://generativelanguage.googleapis.com/") || url.starts_with("gs://")
}

/// The resource of a model, and what is asked of it.
pub(crate) fn path(model: &str, method: &str) -> String {
    format!("{}:{method}", resource(model))
}

/// The resource of a model: most have a bare name, tuned ones a collection of their own.
pub(crate) fn resource(model: &str) -> String {
    if model.contains('/') { model.to_owned() } else { format!("models/{model}") }
}
