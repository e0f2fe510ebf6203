//! The form of an answer in words, for models that cannot be held to it.

use super::conversation::Format;

/// What a model is asked for.
pub(crate) fn in_words(format: &Format<'_>) -> String {
    match format {
        Format::Json => "Answer with one JSON object and nothing else.".to_owned(),
        Format::Schema { schema, .. } => {
            format!("Answer with JSON that keeps to this JSON Schema, and with nothing else:\n{schema}")
        }
    }
}
