//! Usage as the API reports it.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::json::Members;
use crate::usage::{Lacks, Usage, count};

/// What has been reported so far. The end of a stream repeats only some of what its beginning said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    input: Option<i64>,
    output: Option<i64>,
    cache_read: Option<i64>,
    cache_write: Option<i64>,
    thinking: Option<i64>,
    /// Whether the output is that of the whole answer.
    is_whole: bool,
}

impl Reported {
    /// Takes over every figure that a `usage` object has.
    pub(super) fn read(&mut self, value: &RawValue) {
        let Ok(usage) = Members::parse(value.get()) else { return };
        let details = usage.present("output_tokens_details").and_then(|value| Members::parse(value.get()).ok());
        for (kept, read) in [
            (&mut self.input, count(&usage, &["input_tokens"])),
            (&mut self.output, count(&usage, &["output_tokens"])),
            (&mut self.cache_read, count(&usage, &["cache_read_input_tokens"])),
            (&mut self.cache_write, count(&usage, &["cache_creation_input_tokens"])),
            (&mut self.thinking, details.and_then(|details| count(&details, &["thinking_tokens"]))),
        ] {
            *kept = read.or(*kept);
        }
    }

    /// Takes over the figures of the end of an answer, or of a whole one.
    pub(super) fn read_last(&mut self, value: &RawValue) {
        self.read(value);
        let usage = Members::parse(value.get()).ok();
        self.is_whole = usage.is_some_and(|usage| count(&usage, &["output_tokens"]).is_some());
    }

    /// What is known. The prompt is known from the beginning, the output only at the end. The API's `input_tokens` leave out what was read from the cache and written to it.
    pub(super) fn usage(&self) -> Option<Usage> {
        let lacks = match (self.input, self.is_whole) {
            (Some(_), true) => Lacks::Nothing,
            (Some(_), false) => Lacks::Completion,
            (None, true) => Lacks::Prompt,
            (None, false) => return None,
        };
        let (read, written) = (self.cache_read.unwrap_or(0), self.cache_write.unwrap_or(0));
        Some(Usage {
            prompt_tokens: self.input.unwrap_or(0).saturating_add(read).saturating_add(written),
            completion_tokens: self.output.unwrap_or(0),
            cached_tokens: read,
            cache_write_tokens: written,
            reasoning_tokens: self.thinking.unwrap_or(0),
            cost: None,
            lacks,
        })
    }
}

/// Usage as clients of this API read it.
pub(super) fn told(usage: Usage) -> Value {
    let cached = usage.cached_tokens.saturating_add(usage.cache_write_tokens);
    let mut told = json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(cached).max(0),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    });
    if let (Some(members), 1..) = (told.as_object_mut(), usage.reasoning_tokens) {
        members.insert("output_tokens_details".to_owned(), json!({ "thinking_tokens": usage.reasoning_tokens }));
    }
    told
}
