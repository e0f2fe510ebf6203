//! What of a Responses request has no place at a provider, by the names of the request.

use super::request::{Kind, ResponsesRequest};
use crate::hub::{Lost, is_nothing};

impl ResponsesRequest<'_> {
    /// What the client calls it; `None` where this API has no word for it.
    pub(crate) fn name_of(&self, lost: Lost) -> Option<String> {
        let name = match lost {
            Lost::Setting(name) => name,
            Lost::Effort => "reasoning.effort",
            Lost::Format => "text.format",
            Lost::Schema => "text.format.schema",
            Lost::BesideSchema(member) => return Some(format!("text.format.{member}")),
            Lost::User if self.members.present("safety_identifier").is_some() => "safety_identifier",
            Lost::User => "user",
            Lost::ToolChoice => "tool_choice",
            Lost::OneAtATime => "parallel_tool_calls",
            Lost::Strict => "tools[].strict",
            Lost::Detail => "input[].content[].detail",
            Lost::Thought => self.thoughts(),
            Lost::Redacted | Lost::Signature => "input[].encrypted_content",
            Lost::CallSignature => "input[].extra_content",
            Lost::Budget | Lost::Stop | Lost::CacheMark | Lost::Failure => return None,
        };
        Some(name.to_owned())
    }

    /// Where the model's thoughts stand.
    fn thoughts(&self) -> &'static str {
        let mut thoughts = self.items().iter().filter(|item| item.kind == Kind::Reasoning);
        let is_summed_up = thoughts.any(|item| item.members.present("summary").is_some_and(|value| !is_nothing(value)));
        if is_summed_up { "input[].summary" } else { "input[].content" }
    }
}
