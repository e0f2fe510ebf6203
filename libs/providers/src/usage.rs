//! What a provider reports about the tokens of a call.

use serde_json::value::RawValue;

use crate::json::Members;

/// More prompt tokens than a call can have: a body of 32 MiB has fewer, and pictures are few.
const MOST_PROMPT: i64 = 100_000_000;
/// More completion tokens than a call can have: 128 answers, which is the most, of 128 Ki tokens each have fewer.
const MOST_COMPLETION: i64 = 20_000_000;

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
}

impl Usage {
    /// Reads the `usage` member of an OpenAI-shaped answer or chunk. `null`, another shape, or an object without any
    /// count gives nothing. Negative figures are read as zero.
    pub(crate) fn read(value: &RawValue) -> Option<Self> {
        let usage = Members::parse(value.get()).ok()?;
        let completion = count(&usage, &["completion_tokens", "output_tokens"]);
        let total = count(&usage, &["total_tokens"]);
        let prompt = count(&usage, &["prompt_tokens", "input_tokens"])
            .or_else(|| total.map(|total| total.saturating_sub(completion.unwrap_or(0)).max(0)));
        if prompt.is_none() && completion.is_none() {
            return None;
        }
        let details = |name| usage.present(name).and_then(|value| Members::parse(value.get()).ok());
        let of_prompt = details("prompt_tokens_details").or_else(|| details("input_tokens_details"));
        let of_completion = details("completion_tokens_details").or_else(|| details("output_tokens_details"));
        let part = |members: &Option<Members<'_>>, names| members.as_ref().and_then(|members| count(members, names));
        let (prompt, mut completion) = (prompt.unwrap_or(0), completion.unwrap_or(0));
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
                // DeepSeek's name for it (API reference, Create chat completion).
                .or_else(|| count(&usage, &["prompt_cache_hit_tokens"]))
                .unwrap_or(0),
            // OpenRouter's name, and that of gateways like this one.
            cache_write_tokens: part(&of_prompt, &["cache_write_tokens", "cache_creation_tokens"]).unwrap_or(0),
            reasoning_tokens: reasoning,
        })
    }

    /// The `usage` member as [`Usage::read`] does, unless its figures cannot be true: they count as not reported then,
    /// and a log line says so.
    pub(crate) fn read_believed(value: &RawValue) -> Option<Self> {
        let usage = Self::read(value)?;
        if !usage.is_possible() {
            usage.warn_of_doubt();
            return None;
        }
        Some(usage)
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

    /// The sum of two reports, for calls that were split.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_add(other.completion_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
        }
    }
}

/// The first of these names that is a number. Some servers write whole numbers with a fraction.
pub(crate) fn count(members: &Members<'_>, names: &[&str]) -> Option<i64> {
    names.iter().find_map(|name| {
        let number: serde_json::Number = serde_json::from_str(members.present(name)?.get()).ok()?;
        // A float beyond the range of an integer saturates, which is what a nonsensical count should do.
        let whole = number.as_i64().or_else(|| number.as_f64().map(|float| float as i64))?;
        Some(whole.max(0))
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
            r#"{"prompt_tokens":12.0,"completion_tokens":-3,"prompt_tokens_details":{"cached_tokens":8},
                "completion_tokens_details":{"reasoning_tokens":2}}"#,
        )
        .unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (12, 0));
        assert_eq!((usage.cached_tokens, usage.reasoning_tokens), (8, 2));
        let usage = read(
            r#"{"prompt_tokens":9,"completion_tokens":1,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":5,
                "prompt_tokens_details":{"cache_creation_tokens":3}}"#,
        )
        .unwrap();
        assert_eq!((usage.cached_tokens, usage.cache_write_tokens), (4, 3));
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
    fn a_total_alone_counts_as_prompt() {
        assert_eq!(read(r#"{"total_tokens":9}"#).unwrap().prompt_tokens, 9);
    }
}
