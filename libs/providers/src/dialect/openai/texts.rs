//! The texts of an answer: everything a model wrote that counts as output.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::json::{Members, elements, text_of};

/// Which text of a message a piece belongs to. In the order in which models write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Reasoning,
    Content,
    Refusal,
    FunctionName,
    FunctionArguments,
    /// Of the tool call with this index.
    ToolName(u64),
    ToolArguments(u64),
}

/// A text, or the piece of one that a delta brings.
#[derive(Clone, Debug)]
pub(super) struct Text<'a> {
    pub(super) part: Part,
    pub(super) text: Cow<'a, str>,
}

/// All that a `message` or `delta` says: reasoning as far as it is told, content, refusal, names and arguments of calls.
pub(super) fn texts(message: &RawValue) -> Vec<Text<'_>> {
    let Ok(message) = Members::parse(message.get()) else { return Vec::new() };
    let mut texts = Vec::new();
    // Some servers say the same under the old name and the new one.
    texts.extend(first(&message, &["reasoning_content", "reasoning"], Part::Reasoning));
    texts.extend(first(&message, &["content"], Part::Content));
    texts.extend(first(&message, &["refusal"], Part::Refusal));
    if let Some(function) = function(&message, "function_call") {
        texts.extend(first(&function, &["name"], Part::FunctionName));
        texts.extend(first(&function, &["arguments"], Part::FunctionArguments));
    }
    let calls = message.present("tool_calls").and_then(|calls| elements(calls.get()).ok()).unwrap_or_default();
    for (at, call) in (0_u64..).zip(calls) {
        let Ok(call) = Members::parse(call.get()) else { continue };
        let index = call.present("index").and_then(|value| value.get().parse().ok()).unwrap_or(at);
        let Some(function) = function(&call, "function") else { continue };
        texts.extend(first(&function, &["name"], Part::ToolName(index)));
        texts.extend(first(&function, &["arguments"], Part::ToolArguments(index)));
    }
    texts
}

fn function<'a>(members: &Members<'a>, name: &str) -> Option<Members<'a>> {
    Members::parse(members.present(name)?.get()).ok()
}

/// The first of these members that is a text and not empty.
fn first<'a>(members: &Members<'a>, names: &[&str], part: Part) -> Option<Text<'a>> {
    let text = names.iter().find_map(|name| text_of(members.present(name)?).filter(|text| !text.is_empty()))?;
    Some(Text { part, text })
}
