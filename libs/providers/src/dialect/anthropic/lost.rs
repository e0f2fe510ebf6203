//! What of a Messages request has no place at a provider, by the names of the request.

use super::request::MessagesRequest;
use crate::hub::Lost;
use crate::json::Members;

impl MessagesRequest<'_> {
    /// What the client calls it; `None` where this API has no word for it.
    pub(crate) fn name_of(&self, lost: Lost) -> Option<String> {
        let name = match lost {
            Lost::Setting(name) => name,
            Lost::Effort => "output_config.effort",
            Lost::Budget => "thinking.budget_tokens",
            Lost::Format => self.format(),
            Lost::Schema => return Some(format!("{}.schema", self.format())),
            Lost::BesideSchema(_) | Lost::Detail | Lost::CallSignature => return None,
            Lost::Stop => "stop_sequences",
            Lost::User => "metadata.user_id",
            Lost::ToolChoice => "tool_choice",
            Lost::OneAtATime => "tool_choice.disable_parallel_tool_use",
            Lost::Strict => "tools[].strict",
            Lost::CacheMark => "cache_control",
            Lost::Thought => "messages[].content[].thinking",
            Lost::Redacted => "messages[].content[].redacted_thinking",
            Lost::Signature => "messages[].content[].signature",
            Lost::Failure => "messages[].content[].is_error",
        };
        Some(name.to_owned())
    }

    /// Where the form of the answer is said: the second was its place before the first.
    fn format(&self) -> &'static str {
        let config = self.members.present("output_config").and_then(|config| Members::parse(config.get()).ok());
        let is_there = config.is_some_and(|config| config.present("format").is_some());
        if is_there { "output_config.format" } else { "output_format" }
    }
}
