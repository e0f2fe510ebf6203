//! Whose signature it is.
//!
//! Some providers sign what their models thought, or encrypt it, and want it back as it was. What another has signed they
//! refuse, and a conversation may be with one provider now and with another next. So signatures and encrypted thoughts
//! go about under a mark that names who made them, here and in the hands of clients of another dialect. Readers put the
//! mark on, whoever they read from; writers to a provider take it off again, and leave out what is not the provider's.

use std::borrow::Cow;

/// Before a signature, with the signer's name and a colon after it.
pub(crate) const SIGNED: &str = "ragmux-signed:";
/// The same before a thought that only its provider can read.
pub(crate) const REDACTED: &str = "ragmux-redacted:";

/// Who signs: a provider and all that pass its signatures on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signer {
    Anthropic,
    Gemini,
    /// The same, where what is signed is said and not thought: it goes back with the text behind which it came.
    GeminiText,
    /// OpenRouter, for what it passes on of providers whose signatures have no form but its own: all of the detail.
    OpenRouter,
}

impl Signer {
    fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::GeminiText => "gemini-text",
            Self::OpenRouter => "openrouter",
        }
    }

    /// A signature of this signer's under its mark. One that bears a mark keeps it.
    pub(crate) fn signed(self, signature: Cow<'_, str>) -> Cow<'_, str> {
        self.marked(SIGNED, signature)
    }

    /// The same for a thought that is encrypted.
    pub(crate) fn redacted(self, data: Cow<'_, str>) -> Cow<'_, str> {
        self.marked(REDACTED, data)
    }

    fn marked<'a>(self, mark: &str, text: Cow<'a, str>) -> Cow<'a, str> {
        if text.is_empty() || is_marked(&text) { text } else { Cow::Owned(format!("{mark}{}:{text}", self.name())) }
    }

    /// What stands under this signer's mark; `None` where it is another's.
    pub(crate) fn own(self, marked: &str) -> Option<&str> {
        let rest = marked.strip_prefix(SIGNED).or_else(|| marked.strip_prefix(REDACTED))?;
        rest.strip_prefix(self.name())?.strip_prefix(':').filter(|own| !own.is_empty())
    }
}

/// Whether a text is a signature, or an encrypted thought, that we gave to a client.
pub(crate) fn is_marked(text: &str) -> bool {
    text.starts_with(SIGNED) || text.starts_with(REDACTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_its_signers_alone() {
        let (signed, redacted) = (Signer::Gemini.signed("a:b=".into()), Signer::Anthropic.redacted("x".into()));
        assert_eq!((&*signed, &*redacted), ("ragmux-signed:gemini:a:b=", "ragmux-redacted:anthropic:x"));
        assert_eq!((Signer::Gemini.own(&signed), Signer::Anthropic.own(&signed)), (Some("a:b="), None));
        assert_eq!((Signer::Gemini.own(&redacted), Signer::Anthropic.own(&redacted)), (None, Some("x")));
        assert_eq!(Signer::Anthropic.signed(signed.clone()), signed);
        for nobodys in ["", "a", "ragmux-signed:", "ragmux-signed:a", "ragmux-signed:gemini", "ragmux-signed:gemini:"] {
            assert_eq!(Signer::Gemini.own(nobodys), None, "{nobodys}");
        }
        assert!(!is_marked(&Signer::Gemini.signed("".into())) && is_marked("ragmux-signed:a"));
    }
}
