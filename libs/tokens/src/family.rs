//! Which vocabulary a model name stands for.

/// The vocabulary that counts for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `o200k_base`: GPT-4o and everything OpenAI published since, including the open weights.
    O200k,
    /// `cl100k_base`: GPT-4, GPT-3.5 and the text embedding models.
    Cl100k,
    /// No public vocabulary is known for the model: its texts are estimated.
    Estimated,
}

/// Longest names first: `gpt-4o` must be seen before `gpt-4`.
const PREFIXES: [(&str, Family); 13] = [
    ("chatgpt-4o", Family::O200k),
    ("gpt-4o", Family::O200k),
    ("gpt-4.1", Family::O200k),
    ("gpt-4.5", Family::O200k),
    ("gpt-5", Family::O200k),
    ("gpt-oss", Family::O200k),
    ("gpt-4", Family::Cl100k),
    ("gpt-3.5", Family::Cl100k),
    // Azure names its deployments without the point.
    ("gpt-35", Family::Cl100k),
    ("text-embedding-3", Family::Cl100k),
    ("text-embedding-ada-002", Family::Cl100k),
    ("davinci-002", Family::Cl100k),
    ("babbage-002", Family::Cl100k),
];

impl Family {
    /// The family of a model by its name, whatever its case, with or without a vendor before a slash (`openai/gpt-4o`)
    /// and for fine-tuned models (`ft:gpt-4o-mini:acme::7p`).
    ///
    /// The table follows the model list of OpenAI's `tiktoken`.
    pub fn of(model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
        let name = name.strip_prefix("ft:").unwrap_or(&name);
        if is_o_series(name) {
            return Self::O200k;
        }
        PREFIXES
            .iter()
            .find(|(prefix, _)| name.strip_prefix(prefix).is_some_and(starts_a_variant))
            .map_or(Self::Estimated, |(_, family)| *family)
    }
}

/// `gpt-4` is followed by nothing, a variant (`-turbo`), a tag (`:latest`) or, for a point release, a dot: but `gpt-45`
/// would be another model.
pub(crate) fn starts_a_variant(rest: &str) -> bool {
    !rest.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// A model's name without its vendor and its tuning, in small letters, with points as hyphens: whoever sells a model
/// again writes `claude-3.5` for `claude-3-5`.
pub(crate) fn own_name(model: &str) -> String {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase().replace('.', "-");
    name.strip_prefix("ft:").map(str::to_owned).unwrap_or(name)
}

/// `o1`, `o3-mini`, `o4-mini-2025-04-16`.
fn is_o_series(name: &str) -> bool {
    name.strip_prefix('o')
        .and_then(|rest| rest.strip_prefix(|c: char| c.is_ascii_digit()))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_recognised_by_name() {
        for model in [
            "gpt-4o",
            "gpt-4o-mini-2024-07-18",
            "chatgpt-4o-latest",
            "gpt-4.1-nano",
            "gpt-5",
            "gpt-5.1",
            "gpt-5-mini",
            "o1",
            "o3-mini",
            "o4-mini:latest",
            "GPT-4O",
            "openai/gpt-4o",
            "openrouter/openai/o3",
            "ft:gpt-4o-mini:acme::7p",
            "gpt-oss:20b",
        ] {
            assert_eq!(Family::of(model), Family::O200k, "{model}");
        }
        for model in [
            "gpt-4",
            "gpt-4-turbo",
            "gpt-4-0613",
            "gpt-3.5-turbo",
            "gpt-35-turbo",
            "text-embedding-3-small",
            "text-embedding-ada-002",
            "ft:gpt-3.5-turbo:acme",
        ] {
            assert_eq!(Family::of(model), Family::Cl100k, "{model}");
        }
    }

    #[test]
    fn other_models_are_estimated() {
        for model in [
            "",
            "/",
            "claude-sonnet-4-5",
            "gemini-2.5-pro",
            "llama3.1",
            "o",
            "ollama",
            "o1x",
            "gpt-45",
            "demo-chat",
            "ö1",
        ] {
            assert_eq!(Family::of(model), Family::Estimated, "{model}");
        }
    }
}
