//! How much a model thinks.

use serde::Serialize;

use crate::hub::{Effort, Reasoning};

/// The names of models that can think begin so (Ollama library, models with the capability `thinking`). A server refuses
/// to have any other think, so one whose name is not known is not told to.
const THINKERS: [&str; 15] = [
    "cogito-2.1",
    "deepseek-r1",
    "deepseek-v3.1",
    "deepseek-v3.2",
    "deepseek-v4",
    "gemma4",
    "glm-4.6",
    "glm-4.7",
    "gpt-oss",
    "kimi-k2-thinking",
    "magistral",
    "minimax-m2",
    "nemotron-3",
    "qwen3",
    "qwq",
];
/// Of those families, the ones that cannot.
const NO_THINKERS: [&str; 4] = ["qwen3-coder", "qwen3-embedding", "qwen3-reranker", "instruct"];

/// What a model is told: models think or do not; those of one family know levels instead, and no way not to (Ollama,
/// Thinking).
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Said {
    Switch(bool),
    Level(&'static str),
}

/// What becomes of a client's wish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Think {
    Said(Said),
    /// The client says nothing of it.
    Unasked,
    /// The model is not known to think.
    Unable,
}

pub(super) fn think(reasoning: Reasoning, model: &str) -> Think {
    let effort = match (reasoning.effort, reasoning.budget) {
        (Some(effort), _) => effort,
        (None, Some(0)) => Effort::None,
        (None, Some(_)) => Effort::Medium,
        (None, None) => return Think::Unasked,
    };
    let name = model.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    Think::Said(match effort {
        _ if name.starts_with("gpt-oss") => Said::Level(match effort {
            Effort::None | Effort::Minimal | Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High | Effort::Highest => "high",
        }),
        // Every model takes that.
        Effort::None => Said::Switch(false),
        _ if can_think(&name) => Said::Switch(true),
        _ => return Think::Unable,
    })
}

fn can_think(name: &str) -> bool {
    let is_told = name.contains("thinking") || THINKERS.iter().any(|beginning| name.starts_with(beginning));
    is_told && !NO_THINKERS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_models_that_are_known_to_think_are_told_to() {
        let asked = |effort| Reasoning { name: "thinking", effort, budget: None };
        let high = asked(Some(Effort::High));
        for (model, said) in [
            ("qwen3:8b", Think::Said(Said::Switch(true))),
            ("library/DeepSeek-R1:70b", Think::Said(Said::Switch(true))),
            ("qwen3-vl:8b-thinking", Think::Said(Said::Switch(true))),
            ("gpt-oss:20b", Think::Said(Said::Level("high"))),
            ("llama3.2", Think::Unable),
            ("qwen3-coder:30b", Think::Unable),
            ("qwen3:30b-a3b-instruct-2507", Think::Unable),
            ("house-model", Think::Unable),
        ] {
            assert_eq!(think(high, model), said, "{model}");
        }
        assert_eq!(think(asked(Some(Effort::None)), "llama3.2"), Think::Said(Said::Switch(false)));
        assert_eq!(think(asked(None), "qwen3"), Think::Unasked);
        let budget = Reasoning { name: "thinking", effort: None, budget: Some(2048) };
        assert_eq!(think(budget, "qwen3"), Think::Said(Said::Switch(true)));
    }
}
