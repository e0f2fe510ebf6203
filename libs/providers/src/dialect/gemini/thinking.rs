//! How much the model thinks (Gemini API, Thinking).

use serde::Serialize;

use super::models::version;
use crate::hub::{Effort, Reasoning};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Thinking {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    include_thoughts: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_budget: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_level: Option<&'static str>,
}

/// The thinking that the client asks for; `None` where the model cannot be told.
pub(super) fn thinking(reasoning: Reasoning, model: &str) -> Option<Thinking> {
    let version = version(model);
    let is_pro = model.contains("-pro");
    let thinks = version.is_none_or(|version| version >= 25) && !model.contains("gemma");
    if !thinks {
        return None;
    }
    let budget =
        |budget| Some(Thinking { include_thoughts: budget > 0, thinking_budget: Some(budget), thinking_level: None });
    // Gemini API, Thinking, Set budget: the ranges of the models that have budgets.
    let most = if is_pro { 32_768 } else { 24_576 };
    match (reasoning.budget, reasoning.effort) {
        (Some(tokens), _) if version == Some(25) => budget(tokens.clamp(if is_pro { 128 } else { 0 }, most)),
        (Some(tokens), _) => budget(tokens),
        (None, None) => None,
        // Levels came with the third family, which has no way not to think.
        (None, Some(effort)) if version.is_some_and(|version| version >= 30) => {
            let level = match effort {
                Effort::None | Effort::Minimal if is_pro => "low",
                Effort::None | Effort::Minimal => "minimal",
                Effort::Low => "low",
                // The first of them knew two levels only.
                Effort::Medium if is_pro && version == Some(30) => "high",
                Effort::Medium => "medium",
                Effort::High | Effort::Highest => "high",
            };
            let include_thoughts = effort != Effort::None;
            Some(Thinking { include_thoughts, thinking_budget: None, thinking_level: Some(level) })
        }
        // The budgets of efforts are those of the API that Gemini has for OpenAI's clients (OpenAI compatibility,
        // Thinking).
        (None, Some(Effort::None)) => budget(if is_pro { 128 } else { 0 }),
        (None, Some(Effort::Minimal | Effort::Low)) => budget(1024),
        (None, Some(Effort::Medium)) => budget(8192),
        (None, Some(Effort::High | Effort::Highest)) => budget(24_576),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_family_is_told_in_its_way() {
        let asked = |effort, budget| Reasoning { name: "reasoning_effort", effort, budget };
        let budget = |tokens: u64| match tokens {
            0 => json!({ "thinkingBudget": 0 }),
            _ => json!({ "includeThoughts": true, "thinkingBudget": tokens }),
        };
        let level = |level: &str| json!({ "includeThoughts": true, "thinkingLevel": level });
        for (model, effort, tokens, told) in [
            ("gemini-2.5-flash", Some(Effort::None), None, budget(0)),
            ("gemini-2.5-pro", Some(Effort::None), None, budget(128)),
            ("gemini-2.5-flash", Some(Effort::Low), None, budget(1024)),
            ("gemini-2.5-flash-lite", Some(Effort::Medium), None, budget(8192)),
            ("gemini-2.5-pro", Some(Effort::Highest), None, budget(24_576)),
            ("gemini-2.5-flash", None, Some(100_000), budget(24_576)),
            ("models/gemini-2.5-pro", None, Some(100_000), budget(32_768)),
            ("gemini-flash-latest", Some(Effort::Minimal), None, budget(1024)),
            ("gemini-3-flash-preview", Some(Effort::None), None, json!({ "thinkingLevel": "minimal" })),
            ("gemini-3-flash-preview", Some(Effort::Medium), None, level("medium")),
            ("gemini-3-pro-preview", Some(Effort::Medium), None, level("high")),
            ("gemini-3.1-pro-preview", Some(Effort::Medium), None, level("medium")),
            ("gemini-3-pro-preview", Some(Effort::Minimal), None, level("low")),
            ("gemini-3-pro-preview", None, Some(2000), budget(2000)),
            ("gemini-2.0-flash", Some(Effort::High), None, Value::Null),
            ("gemini-1.5-pro", None, Some(9), Value::Null),
            ("gemma-3-27b-it", Some(Effort::High), None, Value::Null),
            ("gemini-2.5-pro", None, None, Value::Null),
        ] {
            let thinking = thinking(asked(effort, tokens), model);
            assert_eq!(serde_json::to_value(thinking).unwrap(), told, "{model} {effort:?} {tokens:?}");
        }
    }
}
