//! What Claude models take of a request, by the version that their name tells.

use crate::hub::Effort;

/// How a model is told to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinks {
    /// It cannot think, and refuses to be told to.
    Never,
    /// By a budget of tokens.
    ByBudget,
    /// By a budget or, which is preferred, as it sees fit, with an effort.
    Either,
    /// As it sees fit, with an effort; a budget is refused.
    Adaptively,
}

/// Which of the numbers that steer the choice of words a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Samples {
    ByAll,
    /// By `temperature` or `top_p`; both together are refused.
    ByOne,
    /// By none.
    Never,
}

/// What one model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) thinks: Thinks,
    pub(super) samples: Samples,
    /// The efforts of those that think as they see fit.
    pub(super) efforts: &'static [Effort],
    /// The most tokens of an answer, where that is known.
    pub(super) most_output: Option<u64>,
}

/// Anthropic API, Effort: `xhigh` came with Opus 4.7, and `max` with Opus 4.6.
const EFFORTS: &[Effort] = &[Effort::Low, Effort::Medium, Effort::High, Effort::Highest];
const EFFORTS_TO_HIGH: &[Effort] = &[Effort::Low, Effort::Medium, Effort::High];

impl Model {
    /// By the name of a model, with or without something before it.
    ///
    /// Thinking: Anthropic API, Extended thinking, Supported models; Adaptive thinking (from 4.6 on; alone from 4.7 on,
    /// where `enabled` is refused). Numbers: What's new in Claude 4.7 (`temperature`, `top_p` and `top_k` are refused);
    /// Migrating to Claude 4.5 and Opus 4.1 (one of `temperature` and `top_p`). Most tokens: Models overview.
    /// A name that tells no version is taken for one whose rules are the narrowest that still take a budget.
    pub(super) fn of(name: &str) -> Self {
        let Some((family, version)) = version(name) else {
            return Self {
                thinks: Thinks::ByBudget,
                samples: Samples::ByOne,
                efforts: EFFORTS_TO_HIGH,
                most_output: None,
            };
        };
        let thinks = match version {
            ..37 => Thinks::Never,
            37..46 => Thinks::ByBudget,
            46 => Thinks::Either,
            _ => Thinks::Adaptively,
        };
        let samples = match version {
            ..=40 => Samples::ByAll,
            41..47 => Samples::ByOne,
            _ => Samples::Never,
        };
        let most_output = match version {
            ..35 => Some(4096),
            35 => Some(8192),
            37 => Some(64_000),
            40 | 41 if family == Family::Opus => Some(32_000),
            40..=45 => Some(64_000),
            46 if family == Family::Opus => Some(128_000),
            46 => Some(64_000),
            _ => None,
        };
        let efforts = if version > 46 || family == Family::Opus { EFFORTS } else { EFFORTS_TO_HIGH };
        Self { thinks, samples, efforts, most_output }
    }

    /// The API's word for an effort.
    pub(super) fn word(self, effort: Effort) -> Option<&'static str> {
        Some(match effort.nearest(self.efforts)? {
            Effort::None | Effort::Minimal | Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            // Opus 4.6 has `max` and no `xhigh`.
            Effort::Highest if self.thinks == Thinks::Either => "max",
            Effort::Highest => "xhigh",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Opus,
    Other,
}

/// The family and the version in a name, such as 45 of `claude-sonnet-4-5-20250929` and 35 of `claude-3-5-haiku-latest`;
/// `None` where the name tells none, or one of the models from before the third.
fn version(name: &str) -> Option<(Family, u32)> {
    let at = name.find("claude-")?;
    let words: Vec<&str> = name.get(at..)?.split(['-', '.', '@', ':']).skip(1).collect();
    // A date has more digits.
    let number = |word: &str| word.parse::<u32>().ok().filter(|_| word.len() <= 2);
    let first = words.iter().position(|word| number(word).is_some())?;
    let major = words.get(first).and_then(|word| number(word)).filter(|major| *major >= 3)?;
    let minor = words.get(first + 1).and_then(|word| number(word)).unwrap_or(0).min(9);
    let family = if words.contains(&"opus") { Family::Opus } else { Family::Other };
    Some((family, major.saturating_mul(10) + minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_what_a_model_takes() {
        use Samples::{ByAll, ByOne, Never as Unsteered};
        use Thinks::{Adaptively, ByBudget, Either, Never};
        for (name, thinks, samples, most) in [
            ("claude-3-haiku-20240307", Never, ByAll, Some(4096)),
            ("claude-3-5-haiku-latest", Never, ByAll, Some(8192)),
            ("claude-3-5-sonnet-20241022", Never, ByAll, Some(8192)),
            ("claude-3-7-sonnet-latest", ByBudget, ByAll, Some(64_000)),
            ("claude-opus-4-20250514", ByBudget, ByAll, Some(32_000)),
            ("claude-sonnet-4-0", ByBudget, ByAll, Some(64_000)),
            ("claude-opus-4-1-20250805", ByBudget, ByOne, Some(32_000)),
            ("claude-sonnet-4-5", ByBudget, ByOne, Some(64_000)),
            ("anthropic.claude-haiku-4-5-20251001-v1:0", ByBudget, ByOne, Some(64_000)),
            ("claude-opus-4-6", Either, ByOne, Some(128_000)),
            ("claude-opus-4.7", Adaptively, Unsteered, None),
            ("claude-sonnet-5", Adaptively, Unsteered, None),
            ("claude-opus-5-20260901", Adaptively, Unsteered, None),
            ("claude-latest", ByBudget, ByOne, None),
            ("claude-2.1", ByBudget, ByOne, None),
            ("house-model", ByBudget, ByOne, None),
        ] {
            let model = Model::of(name);
            assert_eq!((model.thinks, model.samples, model.most_output), (thinks, samples, most), "{name}");
        }
        let highest = |name| Model::of(name).word(Effort::Highest);
        assert_eq!(highest("claude-opus-4-6"), Some("max"));
        assert_eq!(highest("claude-sonnet-4-6"), Some("high"));
        assert_eq!(highest("claude-opus-4-7"), Some("xhigh"));
        assert_eq!(Model::of("claude-sonnet-5").word(Effort::Minimal), Some("low"));
    }
}
