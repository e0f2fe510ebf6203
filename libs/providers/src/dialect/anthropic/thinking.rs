//! How much the model thinks, and when it may not.

use serde::Serialize;

use super::models::{Model, Thinks};
use crate::hub::{Block, Conversation, Effort, Lost, Role, Signer, ToolChoice, leave_out};

/// The least budget that the API takes, which must lie below `max_tokens` (Anthropic API reference, Create a Message,
/// `thinking.budget_tokens`).
pub(super) const LEAST_BUDGET: u64 = 1024;

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Thinking {
    Enabled { budget_tokens: u64 },
    Adaptive,
}

/// What the model is told of its thinking.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) thinking: Option<Thinking>,
    /// `output_config.effort`, beside thinking that is the model's own business.
    pub(super) effort: Option<&'static str>,
}

/// The thinking that the client asks for, where the API allows it: a budget lies below the answer's bound, no tool is
/// forced, and a turn of tools that began without signed thoughts goes on without (Anthropic API reference, Extended
/// thinking; the last does not hold where the model thinks as it sees fit: Adaptive thinking).
pub(super) fn thinking(
    conversation: &Conversation<'_>,
    model: Model,
    max_tokens: u64,
    dropped: &mut Vec<Lost>,
) -> Asked {
    let Some(reasoning) = conversation.reasoning else { return Asked::default() };
    let budget = match (reasoning.budget, reasoning.effort) {
        (Some(0), _) | (None, None | Some(Effort::None)) => return Asked::default(),
        (Some(budget), _) => budget,
        (None, Some(effort)) => share(effort, max_tokens),
    };
    let is_adaptive = match model.thinks {
        Thinks::Never | Thinks::ByBudget => false,
        Thinks::Either => reasoning.budget.is_none(),
        Thinks::Adaptively => true,
    };
    let budget_tokens = budget.max(LEAST_BUDGET);
    let is_forced = matches!(conversation.tool_choice, Some(ToolChoice::Required | ToolChoice::Named(_)));
    let has_no_room = !is_adaptive && (budget_tokens >= max_tokens || goes_on_without(conversation));
    if model.thinks == Thinks::Never || (is_forced && !conversation.tools.is_empty()) || has_no_room {
        leave_out(dropped, Lost::Setting(reasoning.name));
        return Asked::default();
    }
    if is_adaptive {
        if reasoning.budget.is_some() {
            leave_out(dropped, Lost::Budget);
        }
        let effort = reasoning.as_effort().and_then(|effort| model.word(effort));
        return Asked { thinking: Some(Thinking::Adaptive), effort };
    }
    if reasoning.budget.is_some() && reasoning.effort.is_some() {
        // One of the two is all that can be said.
        leave_out(dropped, Lost::Effort);
    }
    Asked { thinking: Some(Thinking::Enabled { budget_tokens }), effort: None }
}

/// What an effort is of the bound that thoughts and answer share. The shares are those that OpenRouter documents for
/// models that take budgets only (Reasoning tokens, Reasoning effort level), but for the highest, which leaves a tenth
/// to the answer.
fn share(effort: Effort, max_tokens: u64) -> u64 {
    let percent = match effort {
        Effort::None => 0,
        Effort::Minimal => 10,
        Effort::Low => 20,
        Effort::Medium => 50,
        Effort::High => 80,
        Effort::Highest => 90,
    };
    max_tokens / 100 * percent
}

/// Whether the conversation ends with results of tools that were called without signed thoughts before.
fn goes_on_without(conversation: &Conversation<'_>) -> bool {
    let mut turns = conversation.turns.iter().rev();
    let ends_with_results = turns.next().is_some_and(|turn| {
        turn.role == Role::User && turn.blocks.iter().any(|block| matches!(block, Block::ToolResult { .. }))
    });
    let is_own = |marked: &str| Signer::Anthropic.own(marked).is_some();
    // Thoughts of others are left out before.
    let thought = turns.next().is_some_and(|turn| {
        let first = turn.blocks.iter().find_map(|block| match block {
            Block::Reasoning { signature, .. } if !signature.as_deref().is_some_and(is_own) => None,
            Block::RedactedReasoning { data } if !is_own(data) => None,
            Block::Reasoning { .. } | Block::RedactedReasoning { .. } => Some(true),
            _ => Some(false),
        });
        first == Some(true)
    });
    ends_with_results && !thought
}
