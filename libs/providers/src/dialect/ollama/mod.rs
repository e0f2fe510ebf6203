//! Ollama's own API, for providers only: no client asks by it.

mod embeddings;
#[cfg(test)]
mod golden_tests;
mod options;
mod outgoing;
mod reader;
mod thinking;

pub(crate) use embeddings::{EMBED_PATH, embed_body, read_embedded};
pub(crate) use outgoing::body;
pub(crate) use reader::{OllamaReader, read_whole};

/// The media types of images that are passed on. The API names none (Ollama API, Generate a chat completion, `images`);
/// these are the ones that the others of its kind take, and what a model's runner cannot read it refuses.
pub(crate) const IMAGE_TYPES: &[&str] = &["image/png", "image/jpeg", "image/gif", "image/webp"];
