//! What an answer repeats of its request. Clients of this API expect all of it.

use serde_json::value::RawValue;

use super::request::ResponsesRequest;
use crate::json::{Members, literal};

/// The members of an answer that its request decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    /// `instructions` as the client sent them, as JSON.
    pub(super) instructions: String,
    /// All of them, as JSON without the braces.
    pub(super) members: String,
}

impl Default for Echo {
    fn default() -> Self {
        Self::of(&Members::default(), &[])
    }
}

impl ResponsesRequest<'_> {
    /// What the answer repeats of this request.
    pub(super) fn echo(&self) -> Echo {
        Echo::of(&self.members, &self.tools)
    }
}

impl Echo {
    fn of(request: &Members<'_>, tools: &[Members<'_>]) -> Self {
        let given = |name: &str, absent: &str| request.present(name).map_or(absent, RawValue::get).to_owned();
        let instructions = given("instructions", "null");
        let tools: Vec<String> = tools.iter().map(tool).collect();
        let members = [
            ("instructions", instructions.clone()),
            ("max_output_tokens", given("max_output_tokens", "null")),
            ("max_tool_calls", given("max_tool_calls", "null")),
            ("metadata", given("metadata", "{}")),
            ("parallel_tool_calls", given("parallel_tool_calls", "true")),
            ("previous_response_id", "null".to_owned()),
            ("prompt_cache_key", given("prompt_cache_key", "null")),
            ("reasoning", reasoning(request)),
            ("safety_identifier", given("safety_identifier", "null")),
            ("service_tier", "\"default\"".to_owned()),
            ("store", "false".to_owned()),
            ("temperature", given("temperature", "null")),
            ("text", text(request)),
            ("tool_choice", given("tool_choice", "\"auto\"")),
            ("tools", format!("[{}]", tools.join(","))),
            ("top_logprobs", given("top_logprobs", "0")),
            ("top_p", given("top_p", "null")),
            ("truncation", given("truncation", "\"disabled\"")),
            ("user", given("user", "null")),
        ];
        let members: Vec<String> = members.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        Self { instructions, members: members.join(",") }
    }
}

fn inner<'a>(request: &Members<'a>, name: &str) -> Option<Members<'a>> {
    Members::parse(request.present(name)?.get()).ok()
}

fn reasoning(request: &Members<'_>) -> String {
    let reasoning = inner(request, "reasoning");
    let given = |name| reasoning.as_ref().and_then(|reasoning| reasoning.present(name)).map_or("null", RawValue::get);
    format!("{{\"effort\":{},\"summary\":{}}}", given("effort"), given("summary"))
}

fn text(request: &Members<'_>) -> String {
    let text = inner(request, "text");
    let given = |name| text.as_ref().and_then(|text| text.present(name)).map(RawValue::get);
    let format = given("format").unwrap_or("{\"type\":\"text\"}");
    format!("{{\"format\":{format},\"verbosity\":{}}}", given("verbosity").unwrap_or("\"medium\""))
}

/// A tool with every member that clients look for in one.
fn tool(tool: &Members<'_>) -> String {
    let mut text = String::from("{");
    for (name, value) in tool.iter() {
        text.push_str(&format!("{}:{},", literal(name), value.get()));
    }
    let is_function = tool.present("type").is_some_and(|kind| kind.get() == "\"function\"");
    for name in ["description", "parameters", "strict"] {
        if is_function && tool.get(name).is_none() {
            text.push_str(&format!("\"{name}\":null,"));
        }
    }
    text.pop();
    text.push('}');
    text
}
