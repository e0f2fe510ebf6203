//! What a provider reports about the tokens of a call.

use domain::{NanoUsd, ProviderType};
use serde_json::value::RawValue;

use crate::json::Members;

/// More prompt tokens than a call can have: a body of 32 MiB has fewer, and pictures are few.
const MOST_PROMPT: i64 = 100_000_000;
/// More completion tokens than a call can have: 128 answers, which is the most, of 128 Ki tokens each have fewer.
const MOST_COMPLETION: i64 = 20_000_000;

/// Which figure a report lacks: it says nothing of it, or what cannot be (less than nothing, a text).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lacks {
    /// None.
    #[default]
    Nothing,
    /// The prompt's tokens.
    Prompt,
    /// The completion's, or it has only what they had come to before the answer was whole.
    Completion,
}

/// Reported tokens. Zero is a value the provider gave; "not reported" is the absence of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached and written ones included.
    pub prompt_tokens: i64,
    /// Completion tokens, reasoning included.
    pub completion_tokens: i64,
    /// Prompt tokens read from the provider's cache.
    pub cached_tokens: i64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write_tokens: i64,
    /// Completion tokens spent on reasoning.
    pub reasoning_tokens: i64,
    /// What the provider says that the call has cost.
    pub cost: Option<NanoUsd>,
    /// The figure that has to be counted by who needs it.
    pub lacks: Lacks,
}

impl Usage {
    /// Reads the `usage` member of an OpenAI-shaped answer or chunk. `null`, another shape, or an object without any
    /// count gives nothing. A figure below zero is none.
    pub(crate) fn read(value: &RawValue) -> Option<Self> {
        let usage = Members::parse(value.get()).ok()?;
        let completion = count(&usage, &["completion_tokens", "output_tokens"]);
        let total = count(&usage, &["total_tokens"]);
        let prompt = count(&usage, &["prompt_tokens", "input_tokens"]);
        let rest = |known: i64| total.map(|total| total.saturating_sub(known).max(0));
        let (prompt, mut completion, lacks) = match (prompt, completion) {
            (Some(prompt), Some(completion)) => (prompt, completion, Lacks::Nothing),
            (Some(prompt), None) => match rest(prompt) {
                Some(completion) => (prompt, completion, Lacks::Nothing),
                None => (prompt, 0, Lacks::Completion),
            },
            (None, Some(completion)) => match rest(completion) {
                Some(prompt) => (prompt, completion, Lacks::Nothing),
                None => (0, completion, Lacks::Prompt),
            },
            (None, None) => (total?, 0, Lacks::Nothing),
        };
        let details = |name| usage.present(name).and_then(|value| Members::parse(value.get()).ok());
        let of_prompt = details("prompt_tokens_details").or_else(|| details("input_tokens_details"));
        let of_completion = details("completion_tokens_details").or_else(|| details("output_tokens_details"));
        let part = |members: &Option<Members<'_>>, names| members.as_ref().and_then(|members| count(members, names));
        let reasoning = part(&of_completion, &["reasoning_tokens"]).unwrap_or(0);
        // xAI counts reasoning beside the completion; only its total tells (API reference, Chat completions, usage).
        let both = completion.saturating_add(reasoning);
        if reasoning > 0 && total == Some(prompt.saturating_add(both)) {
            completion = both;
        }
        Some(Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_tokens: part(&of_prompt, &["cached_tokens"])
                // DeepSeek's name for it (API reference, Create chat completion), and Mistral's (API reference, Chat
                // completion, UsageInfo).
                .or_else(|| count(&usage, &["prompt_cache_hit_tokens", "num_cached_tokens"]))
                .unwrap_or(0),
            // OpenRouter's name, and that of gateways like this one.
            cache_write_tokens: part(&of_prompt, &["cache_write_tokens", "cache_creation_tokens"]).unwrap_or(0),
            reasoning_tokens: reasoning,
            cost: usage.present("cost").and_then(|cost| NanoUsd::of_dollars(cost.get())),
            lacks,
        })
    }

    /// The `usage` member of an answer without a completion, as [`Usage::read`] reads it, unless its figures cannot be
    /// true: they count as not reported then, and a log line says so.
    pub(crate) fn read_believed(value: &RawValue) -> Option<Self> {
        Self::read(value).filter(|usage| usage.lacks != Lacks::Prompt)?.believed()
    }

    /// The figures, unless they cannot be true: they count as not reported then, and a log line says so.
    pub(crate) fn believed(self) -> Option<Self> {
        if !self.is_possible() {
            self.warn_of_doubt();
            return None;
        }
        Some(self)
    }

    /// Whether any call can use as much.
    pub(crate) fn is_possible(&self) -> bool {
        self.prompt_tokens <= MOST_PROMPT && self.completion_tokens <= MOST_COMPLETION
    }

    /// Says in the log that this was reported and is not believed.
    pub(crate) fn warn_of_doubt(&self) {
        tracing::warn!(
            prompt_tokens = self.prompt_tokens,
            completion_tokens = self.completion_tokens,
            "a provider reported more tokens than a call can use, the call is charged by our own count"
        );
    }

    /// The same without what only other providers tell.
    pub(crate) fn of(self, provider: ProviderType) -> Self {
        Self { cost: self.cost.filter(|_| provider.tells_cost()), ..self }
    }

    /// The same with what it lacks as it was counted elsewhere. What is known of a part of it counts if it is more.
    #[must_use]
    pub fn filled(mut self, prompt_tokens: i64, completion_tokens: i64) -> Self {
        match std::mem::take(&mut self.lacks) {
            Lacks::Nothing => {}
            Lacks::Prompt => self.prompt_tokens = self.prompt_tokens.max(prompt_tokens),
            Lacks::Completion => self.completion_tokens = self.completion_tokens.max(completion_tokens),
        }
        self
    }

    /// The sum of two reports, for calls that were split.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_add(other.completion_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
            cost: self.cost.zip(other.cost).map(|(one, other)| one + other),
            lacks: if self.lacks == Lacks::Nothing { other.lacks } else { self.lacks },
        }
    }
}

/// The first of these names that is a number, zero or more. Some servers write whole numbers with a fraction.
pub(crate) fn count(members: &Members<'_>, names: &[&str]) -> Option<i64> {
    names.iter().find_map(|name| {
        let number: serde_json::Number = serde_json::from_str(members.present(name)?.get()).ok()?;
        // A float beyond the range of an integer saturates, which is what a nonsensical count should do.
        let whole = number.as_i64().or_else(|| number.as_f64().map(|float| float as i64))?;
        (whole >= 0).then_some(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Usage> {
        Usage::read(&RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn zero_is_a_value_and_null_is_an_absence() {
        assert_eq!(read(r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#), Some(Usage::default()));
        assert_eq!(read("null"), None);
        assert_eq!(read("{}"), None);
        assert_eq!(read("7"), None);
    }

    #[test]
    fn details_are_read_and_odd_numbers_are_tamed() {
        let usage = read(
            r#"{"prompt_tokens":12.0,"completion_tokens":3.0,"prompt_tokens_details":{"cached_tokens":8},
                "completion_tokens_details":{"reasoning_tokens":2}}"#,
        )
        .unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (12, 3));
        assert_eq!((usage.cached_tokens, usage.reasoning_tokens), (8, 2));
        let usage = read(
            r#"{"prompt_tokens":9,"completion_tokens":1,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":5,
                "prompt_tokens_details":{"cache_creation_tokens":3}}"#,
        )
        .unwrap();
        assert_eq!((usage.cached_tokens, usage.cache_write_tokens), (4, 3));
    }

    #[test]
    fn a_figure_that_cannot_be_is_none() {
        for nothing in [
            r#"{"prompt_tokens":-5,"completion_tokens":-5}"#,
            r#"{"prompt_tokens":"7","completion_tokens":null}"#,
            r#"{"prompt_tokens":-5,"completion_tokens":-5,"total_tokens":-10}"#,
        ] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
        for (text, prompt, completion, lacks) in [
            (r#"{"prompt_tokens":7,"completion_tokens":-1}"#, 7, 0, Lacks::Completion),
            (r#"{"prompt_tokens":"7","completion_tokens":3}"#, 0, 3, Lacks::Prompt),
            (r#"{"completion_tokens":3}"#, 0, 3, Lacks::Prompt),
            (r#"{"completion_tokens":3,"total_tokens":9}"#, 6, 3, Lacks::Nothing),
            (r#"{"prompt_tokens":7,"total_tokens":9}"#, 7, 2, Lacks::Nothing),
        ] {
            let usage = read(text).unwrap();
            assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.lacks), (prompt, completion, lacks));
            let filled = usage.filled(40, 50);
            let counted = |figure, lacked, count| if lacks == lacked { count } else { figure };
            assert_eq!(filled.prompt_tokens, counted(prompt, Lacks::Prompt, 40));
            assert_eq!(filled.completion_tokens, counted(completion, Lacks::Completion, 50));
        }
        let read = |text: &str| Usage::read_believed(&RawValue::from_string(text.to_owned()).unwrap());
        assert_eq!(read(r#"{"prompt_tokens":8}"#).unwrap().prompt_tokens, 8);
        assert_eq!(read(r#"{"completion_tokens":8}"#), None);
    }

    #[test]
    fn reasoning_counted_beside_the_completion_is_part_of_it() {
        let read = |total: u64| {
            let details = r#""completion_tokens_details":{"reasoning_tokens":9}"#;
            read(&format!(r#"{{"prompt_tokens":32,"completion_tokens":12,"total_tokens":{total},{details}}}"#)).unwrap()
        };
        assert_eq!((read(53).completion_tokens, read(44).completion_tokens), (21, 12));
    }

    #[test]
    fn what_no_call_can_use_is_not_believed() {
        let believed = |prompt: i64, completion: i64| {
            let text = format!(r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion}}}"#);
            Usage::read_believed(&RawValue::from_string(text).unwrap()).is_some()
        };
        assert!(believed(MOST_PROMPT, MOST_COMPLETION));
        assert!(!believed(MOST_PROMPT + 1, 1) && !believed(1, MOST_COMPLETION + 1) && !believed(i64::MAX, i64::MAX));
        let beyond = r#"{"prompt_tokens":1,"completion_tokens":1e30}"#;
        assert_eq!(Usage::read_believed(&RawValue::from_string(beyond.to_owned()).unwrap()), None);
    }

    #[test]
    fn a_cost_is_a_number_of_dollars_of_who_counts_in_them() {
        for (cost, nano) in [("0.00014", Some(140_000)), ("0", Some(0)), ("null", None), ("{}", None), ("-1", None)] {
            let usage = read(&format!(r#"{{"prompt_tokens":1,"completion_tokens":1,"cost":{cost}}}"#)).unwrap();
            assert_eq!(usage.of(ProviderType::OpenRouter).cost.map(|cost| cost.0), nano, "{cost}");
            assert_eq!(usage.of(ProviderType::CustomOpenAi).cost, None);
        }
        let cost = |nano: Option<i64>| Usage { cost: nano.map(NanoUsd), ..Usage::default() };
        assert_eq!(cost(Some(1)).plus(cost(Some(2))).cost, Some(NanoUsd(3)));
        assert_eq!(cost(Some(1)).plus(cost(None)).cost, None);
    }

    #[test]
    fn a_total_alone_counts_as_prompt() {
        assert_eq!(read(r#"{"total_tokens":9}"#).unwrap().prompt_tokens, 9);
    }
}
