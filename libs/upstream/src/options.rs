//! What a server is started with.

use domain::Secret;

/// How an upstream behaves for as long as it runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys a caller may use, as `Authorization: Bearer` (or `x-api-key`, `api-key`). Empty: none is asked for.
    pub api_keys: Vec<Secret>,
    /// Whether calls can be scripted and are remembered, through [`crate::Handle`] and the routes under `/script`,
    /// which ask for no key.
    pub script: bool,
    /// Whether any model name is answered; otherwise only the demonstration models are, and others get the 404 that
    /// OpenAI gives.
    pub any_model: bool,
    /// How many calls the log keeps; older ones are forgotten, the counters are not. 0 saves the work of noting them.
    pub log_calls: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { api_keys: Vec::new(), script: false, any_model: false, log_calls: 2_000 }
    }
}

impl Options {
    /// For tests: every call can be scripted, every model name is answered.
    #[must_use]
    pub fn scripted() -> Self {
        Self { script: true, any_model: true, ..Self::default() }
    }
}
