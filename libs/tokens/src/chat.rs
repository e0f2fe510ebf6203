//! What a conversation adds to the texts in it.

use crate::{Family, count};

/// Tokens that frame one message: its start, its role and its end, as OpenAI documents for its chat models.
pub const MESSAGE_OVERHEAD: usize = 4;

/// Tokens that open the reply after the last message.
pub const REPLY_PRIMING: usize = 3;

/// Tokens of a conversation given the texts of its messages (content and, where set, name).
///
/// The frame is OpenAI's; other providers' templates are of the same size. What else a request carries is
/// given as texts too; images are not texts, see [`crate::ImageTokens`].
pub fn count_messages<'a>(family: Family, texts: impl IntoIterator<Item = &'a str>) -> usize {
    texts
        .into_iter()
        .fold(REPLY_PRIMING, |total, text| total.saturating_add(MESSAGE_OVERHEAD).saturating_add(count(family, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_its_texts_and_their_frames() {
        // "Hello" and "How are you?" are 1 and 4 tokens of o200k_base.
        assert_eq!(count_messages(Family::O200k, ["Hello", "How are you?"]), 3 + (4 + 1) + (4 + 4));
        assert_eq!(count_messages(Family::O200k, []), 3);
    }
}
