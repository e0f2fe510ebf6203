//! Events and the answer that the first and last of them carry.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::echo::Echo;
use crate::hub::Finish;
use crate::json::literal;
use crate::usage::Usage;

/// How far an answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// Ended before its end, for this reason.
    Incomplete(&'static str),
}

impl Status {
    /// What an answer that ended so is (OpenAI API reference, The response object).
    pub(super) fn of(finish: Option<&Finish>) -> Self {
        match finish {
            Some(Finish::Length) => Self::Incomplete("max_output_tokens"),
            Some(Finish::ContentFilter) => Self::Incomplete("content_filter"),
            Some(Finish::Stop | Finish::StopSequence(_) | Finish::ToolCalls) | None => Self::Completed,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
        }
    }

    fn details(self) -> String {
        match self {
            Self::Incomplete(reason) => format!("{{\"reason\":\"{reason}\"}}"),
            Self::InProgress | Self::Completed => "null".to_owned(),
        }
    }
}

/// What all states of one answer have in common.
#[derive(Debug)]
pub(super) struct Head<'a> {
    pub(super) id: &'a str,
    pub(super) created_s: i64,
    pub(super) model: &'a str,
    pub(super) echo: &'a Echo,
}

impl Head<'_> {
    /// The answer as it stands. `output` are its items as JSON, separated by commas.
    pub(super) fn response(&self, status: Status, output: &str, usage: Option<Usage>) -> String {
        self.write(status.as_str(), "null", &status.details(), output, usage)
    }

    /// The answer that failed with this error, as JSON.
    pub(super) fn failed(&self, error: &str, output: &str, usage: Option<Usage>) -> String {
        self.write("failed", error, "null", output, usage)
    }

    fn write(&self, status: &str, error: &str, incomplete: &str, output: &str, usage: Option<Usage>) -> String {
        let Self { id, created_s, model, echo } = self;
        format!(
            "{{\"id\":{},\"object\":\"response\",\"created_at\":{created_s},\"status\":\"{status}\",\
             \"background\":false,\"error\":{error},\"incomplete_details\":{incomplete},\"model\":{},\
             \"output\":[{output}],\"usage\":{},{}}}",
            literal(id),
            literal(model),
            usage.map_or(Value::Null, told),
            echo.members,
        )
    }
}

/// Usage as clients of this API read it.
pub(super) fn told(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.prompt_tokens.saturating_add(usage.completion_tokens),
    })
}

/// An event. `more` follows its number.
pub(super) fn event(kind: &str, number: u64, more: &str, out: &mut BytesMut) {
    let event = format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number}{more}}}\n\n");
    out.extend_from_slice(event.as_bytes());
}

/// An event of ours, named after its member. It has no number: those are of the API's own events. `value` must be JSON.
pub(super) fn own_event(name: &str, value: &str, out: &mut BytesMut) {
    let event = format!("event: {name}.sources\ndata: {{\"type\":\"{name}.sources\",\"{name}\":{value}}}\n\n");
    out.extend_from_slice(event.as_bytes());
}
