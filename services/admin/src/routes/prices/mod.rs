//! What models cost.

pub(crate) mod list;
pub(crate) mod set;

use serde::{Deserialize, Serialize};

/// A price, as the API takes and shows it: nano-USD per million tokens.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Price {
    provider_type: String,
    /// A model's name, or a prefix of names before a `*`.
    model_pattern: String,
    input: i64,
    output: i64,
    #[serde(default)]
    cache_read: Option<i64>,
    #[serde(default)]
    cache_write: Option<i64>,
    /// `builtin` or `user`; only shown.
    #[serde(default, skip_deserializing)]
    source: &'static str,
}
