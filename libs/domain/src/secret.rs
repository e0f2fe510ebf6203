//! A string that must not leak.

use std::fmt;

use zeroize::Zeroizing;

/// A key, token, password or credential.
///
/// It has no `Display`, its `Debug` is redacted, it cannot be serialised, and its memory is wiped when it is dropped.
/// [`Secret::expose`] is the only way to the text, which keeps every use findable.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text itself, for the one place that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_text() {
        let shown = format!("{:?}", Secret::new("hunter2-hunter2"));
        assert_eq!(shown, "Secret(redacted)");
    }
}
