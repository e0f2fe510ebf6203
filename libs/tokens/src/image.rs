//! What a picture is worth to a model.

use crate::family::{own_name, starts_a_variant};

/// The most tokens a model takes for one picture. How large a picture is does not show before it is decoded, so the
/// largest that the provider keeps after scaling stands for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTokens {
    /// Looked at closely, or as the provider likes.
    pub close: usize,
    /// At a glance (`detail: low`).
    pub at_a_glance: usize,
}

/// OpenAI, Images and vision: a picture of up to 768 by 2048 points is 8 tiles of 512, each 170 tokens, and 85 more,
/// which are all that a glance takes. The small models pay in their own coin: more tokens at a lower price, or patches of
/// 32 points, up to 1536 of them, times a factor. Anthropic, Vision: width times height by 750, of at most 1.15 million
/// points or so. Models that are not named here are taken to be like GPT-4o, the dearest of those that count tiles.
const PREFIXES: [(&str, ImageTokens); 7] = [
    ("gpt-4o-mini", ImageTokens { close: 2_833 + 8 * 5_667, at_a_glance: 2_833 }),
    // 1.62, 2.46 and 1.72 a patch; a glance is at 512 by 512, which is 256 patches.
    ("gpt-4-1-mini", ImageTokens { close: 2_489, at_a_glance: 415 }),
    ("gpt-5-mini", ImageTokens { close: 2_489, at_a_glance: 415 }),
    ("gpt-4-1-nano", ImageTokens { close: 3_779, at_a_glance: 630 }),
    ("gpt-5-nano", ImageTokens { close: 3_779, at_a_glance: 630 }),
    ("o4-mini", ImageTokens { close: 2_642, at_a_glance: 441 }),
    ("claude", ImageTokens { close: 1_600, at_a_glance: 1_600 }),
];

const OTHERS: ImageTokens = ImageTokens { close: 85 + 8 * 170, at_a_glance: 85 };

impl ImageTokens {
    /// By the name of a model, as [`crate::Family::of`] reads it.
    pub fn of(model: &str) -> Self {
        let name = own_name(model);
        let found = PREFIXES.iter().find(|(prefix, _)| name.strip_prefix(prefix).is_some_and(starts_a_variant));
        found.map_or(OTHERS, |(_, tokens)| *tokens)
    }

    /// The tokens of so many pictures.
    pub fn all(self, close: usize, at_a_glance: usize) -> usize {
        self.close.saturating_mul(close).saturating_add(self.at_a_glance.saturating_mul(at_a_glance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_counted_as_the_model_counts_them() {
        assert_eq!(ImageTokens::of("gpt-4o").all(1, 2), 1_445 + 2 * 85);
        assert_eq!(ImageTokens::of("openai/gpt-4o-mini-2024-07-18").all(1, 1), 48_169 + 2_833);
        assert_eq!(ImageTokens::of("gpt-4.1-nano").all(1, 0), 3_779);
        assert_eq!(ImageTokens::of("claude-sonnet-4-5").all(1, 1), 3_200);
        assert_eq!(ImageTokens::of("demo-chat").all(2, 0), 2 * 1_445);
        assert_eq!(ImageTokens::of("gpt-4o").all(usize::MAX, 1), usize::MAX);
    }
}
