//! From token numbers back to text.

use crate::Family;

/// The text that `tokens` stand for, or `None` if the family's vocabulary is not known, a number is not in it, or the
/// bytes are not UTF-8.
///
/// Clients may send token numbers in place of text to an embeddings endpoint (OpenAI API reference, Embeddings,
/// `input`).
pub fn decode(family: Family, tokens: &[u32]) -> Option<String> {
    let tokenizer = match family {
        Family::O200k => bpe_openai::o200k_base(),
        Family::Cl100k => bpe_openai::cl100k_base(),
        Family::Estimated => return None,
    };
    // The decoder itself does not look.
    let known = u32::try_from(tokenizer.bpe.num_tokens()).unwrap_or(u32::MAX);
    if tokens.iter().any(|token| *token >= known) {
        return None;
    }
    tokenizer.decode(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_text_again() {
        assert_eq!(decode(Family::Cl100k, &[15339, 1917]).as_deref(), Some("hello world"));
        assert_eq!(decode(Family::Cl100k, &[]).as_deref(), Some(""));
    }

    #[test]
    fn unknown_numbers_and_vocabularies_have_no_text() {
        assert_eq!(decode(Family::Cl100k, &[u32::MAX]), None);
        // `<|endoftext|>` is not part of the ordinary vocabulary.
        assert_eq!(decode(Family::Cl100k, &[100_257]), None);
        assert_eq!(decode(Family::Estimated, &[15339]), None);
    }
}
