//! How much a model can write.

use crate::family::own_name;

/// The most output tokens of an answer, reasoning included, by the providers' lists of models (OpenAI, Models; Anthropic,
/// Models overview; Google, Gemini models; DeepSeek, Models and pricing). Longer names stand before those they begin
/// with; points are written as hyphens.
const PREFIXES: [(&str, u64); 34] = [
    ("gpt-5-chat", 16_384),
    ("gpt-5", 128_000),
    ("gpt-4-1", 32_768),
    ("gpt-4-5", 16_384),
    ("gpt-4o", 16_384),
    ("chatgpt-4o", 16_384),
    ("gpt-4-turbo", 4_096),
    ("gpt-4", 8_192),
    ("gpt-3-5", 4_096),
    ("gpt-35", 4_096),
    ("gpt-oss", 131_072),
    ("o1-preview", 32_768),
    ("o1-mini", 65_536),
    ("o1", 100_000),
    ("o3", 100_000),
    ("o4", 100_000),
    ("claude-opus-4-5", 64_000),
    ("claude-opus-4", 32_000),
    ("claude-sonnet-4", 64_000),
    ("claude-haiku-4", 64_000),
    ("claude-3-7", 64_000),
    ("claude-3-5", 8_192),
    ("claude-3", 4_096),
    // As resellers write them.
    ("claude-4-5", 64_000),
    ("claude-4-opus", 32_000),
    ("claude-4", 64_000),
    ("gemini-3", 65_536),
    ("gemini-2-5", 65_536),
    ("gemini-2-0", 8_192),
    ("gemini-1-5", 8_192),
    ("deepseek-chat", 8_192),
    ("deepseek-reasoner", 65_536),
    ("codex-mini", 100_000),
    ("computer-use-preview", 1_024),
];

/// The most output tokens of one answer that a model gives, where that is known. The name is read as
/// [`crate::Family::of`] reads it.
pub fn most_output(model: &str) -> Option<u64> {
    let name = own_name(model);
    let is_it = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
    };
    PREFIXES.iter().find(|(prefix, _)| is_it(prefix)).map(|(_, tokens)| *tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_models_have_their_maximum_and_others_none() {
        for (model, most) in [
            ("gpt-5.1-mini", 128_000),
            ("gpt-4.1-nano-2025-04-14", 32_768),
            ("openai/gpt-4o-mini", 16_384),
            ("gpt-4", 8_192),
            ("o3-mini", 100_000),
            ("o1-mini-2024-09-12", 65_536),
            ("claude-opus-4-1-20250805", 32_000),
            ("claude-opus-4-5", 64_000),
            ("anthropic/claude-sonnet-4.5", 64_000),
            ("claude-3-5-haiku-latest", 8_192),
            ("anthropic/claude-3.5-sonnet", 8_192),
            ("gemini-2.5-pro", 65_536),
            ("DeepSeek-Chat", 8_192),
        ] {
            assert_eq!(most_output(model), Some(most), "{model}");
        }
        for model in ["", "demo-chat", "llama3.1", "gpt-45", "o11", "claude", "my-gpt-5"] {
            assert_eq!(most_output(model), None, "{model}");
        }
    }

    #[test]
    fn no_name_hides_a_longer_one() {
        for (at, (prefix, _)) in PREFIXES.iter().enumerate() {
            let before = &PREFIXES[..at];
            assert!(!before.iter().any(|(earlier, _)| prefix.starts_with(&format!("{earlier}-"))), "{prefix}");
        }
    }
}
