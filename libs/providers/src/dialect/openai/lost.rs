//! What of a Chat request has no place at a provider, by the names of the request.

use serde_json::value::RawValue;

use super::request::ChatRequest;
use crate::hub::{Lost, is_nothing};
use crate::json::Members;

impl ChatRequest<'_> {
    /// What the client calls it; `None` where it has not said it.
    pub(crate) fn name_of(&self, lost: Lost) -> Option<String> {
        let name = match lost {
            Lost::Setting(name) => name,
            Lost::Effort => self.first_of(&["reasoning_effort", "reasoning.effort"])?,
            Lost::Budget => self.first_of(&["reasoning.max_tokens", "thinking.budget_tokens"])?,
            Lost::Format => "response_format",
            Lost::Schema => "response_format.json_schema",
            Lost::BesideSchema(member) => return Some(format!("response_format.json_schema.{member}")),
            Lost::Stop => "stop",
            Lost::User => self.first_of(&["safety_identifier", "user"])?,
            Lost::ToolChoice => self.first_of(&["tool_choice", "function_call"])?,
            Lost::OneAtATime => self.first_of(&["parallel_tool_calls"])?,
            Lost::Strict if self.has_functions() => "functions[].strict",
            Lost::Strict => "tools[].function.strict",
            Lost::CacheMark => "cache_control",
            Lost::Detail => "messages[].content[].image_url.detail",
            Lost::Thought => self.thoughts(),
            Lost::Redacted => "messages[].reasoning_details",
            Lost::Signature => "messages[].reasoning_details[].signature",
            Lost::CallSignature => "messages[].tool_calls[].extra_content",
            // This API has no word for it.
            Lost::Failure => return None,
        };
        Some(name.to_owned())
    }

    /// The first of these members, or members of members, that is there.
    fn first_of(&self, paths: &[&'static str]) -> Option<&'static str> {
        let is_there = |path: &&&str| {
            let (name, inner) = path.split_once('.').unwrap_or((path, ""));
            let value = self.members.present(name);
            let has_inner =
                |value: &RawValue| Members::parse(value.get()).is_ok_and(|value| value.present(inner).is_some());
            value.is_some_and(|value| inner.is_empty() || has_inner(value))
        };
        paths.iter().find(is_there).copied()
    }

    /// Where the model's thoughts stand.
    fn thoughts(&self) -> &'static str {
        let places = [
            ("reasoning_details", "messages[].reasoning_details"),
            ("reasoning_content", "messages[].reasoning_content"),
            ("reasoning", "messages[].reasoning"),
        ];
        let is_said = |name: &str| {
            let said = |value| !is_nothing(value);
            self.messages.iter().any(|message| message.members.present(name).is_some_and(said))
        };
        let place = places.into_iter().find(|(name, _)| is_said(name));
        // As Mistral has them.
        place.map_or("messages[].content[].thinking", |(_, path)| path)
    }
}
