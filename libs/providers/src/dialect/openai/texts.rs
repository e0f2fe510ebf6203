//! The texts of an answer: everything a model wrote that counts as output.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::bound::index_of;
use crate::json::{Members, elements, said_in, text_of};

/// Which text of a message a piece belongs to. In the order in which models write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Reasoning,
    Content,
    Refusal,
    /// The words of an audio answer.
    Transcript,
    FunctionName,
    FunctionArguments,
    /// Of the tool call with this index.
    ToolName(u64),
    ToolArguments(u64),
}

/// A text, or the piece of one that a delta brings.
#[derive(Clone, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) part: Part,
    pub(crate) text: Cow<'a, str>,
}

/// A choice of an answer, or the piece of one that a chunk brings.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) index: u64,
    pub(crate) finish_reason: Option<String>,
    pub(crate) texts: Vec<Text<'a>>,
}

/// The names under which servers tell a model's reasoning. Some say the same under several of them.
pub(crate) const REASONING: [&str; 4] = ["reasoning_content", "reasoning", "thinking", "reasoning_details"];

/// Texts are looked for in parts of parts, and no deeper.
const DEEPEST: usize = 4;

/// The choices of a chunk, or of an answer of the API from before chats. What is no object is none.
pub(crate) fn pieces<'a>(choices: &[&'a RawValue]) -> Vec<Piece<'a>> {
    let choices = choices.iter().filter_map(|raw| Members::parse(raw.get()).ok());
    let piece = |choice: Members<'a>| Piece {
        index: index_of(&choice),
        finish_reason: choice.present("finish_reason").and_then(text_of).map(Cow::into_owned),
        texts: match choice.present("delta") {
            Some(delta) => texts(delta),
            // There the text is the choice's own, and what else servers tell is beside it.
            None => said(&choice).into_iter().chain(first(&choice, "text", Part::Content)).collect(),
        },
    };
    choices.map(piece).collect()
}

/// All that a `message` or `delta` says: reasoning as far as it is told, content, refusal, the words of audio, names and
/// arguments of calls.
pub(super) fn texts(message: &RawValue) -> Vec<Text<'_>> {
    Members::parse(message.get()).map(|message| said(&message)).unwrap_or_default()
}

fn said<'a>(message: &Members<'a>) -> Vec<Text<'a>> {
    let mut texts = Vec::new();
    let content = message.present("content");
    let (text, thought) = match content {
        Some(content) if content.get().starts_with('[') => parts(content),
        content => (content.and_then(said_in), None),
    };
    let told = REASONING.iter().find_map(|name| full(joined(message.present(name)?, DEEPEST)));
    texts.extend(told.or_else(|| full(thought)).map(|text| Text { part: Part::Reasoning, text }));
    texts.extend(full(text).map(|text| Text { part: Part::Content, text }));
    texts.extend(first(message, "refusal", Part::Refusal));
    if let Some(audio) = object(message, "audio") {
        texts.extend(first(&audio, "transcript", Part::Transcript));
    }
    if let Some(function) = object(message, "function_call") {
        texts.extend(first(&function, "name", Part::FunctionName));
        texts.extend(first(&function, "arguments", Part::FunctionArguments));
    }
    let calls = message.present("tool_calls").and_then(|calls| elements(calls.get()).ok()).unwrap_or_default();
    for (at, call) in (0_u64..).zip(calls) {
        let Ok(call) = Members::parse(call.get()) else { continue };
        let index = call.present("index").and_then(|value| value.get().parse().ok()).unwrap_or(at);
        for (tool, arguments) in [("function", "arguments"), ("custom", "input")] {
            let Some(tool) = object(&call, tool) else { continue };
            texts.extend(first(&tool, "name", Part::ToolName(index)));
            texts.extend(first(&tool, arguments, Part::ToolArguments(index)));
        }
    }
    texts
}

fn object<'a>(members: &Members<'a>, name: &str) -> Option<Members<'a>> {
    Members::parse(members.present(name)?.get()).ok()
}

/// The member if it is a text and not empty.
fn first<'a>(members: &Members<'a>, name: &str, part: Part) -> Option<Text<'a>> {
    full(said_in(members.present(name)?)).map(|text| Text { part, text })
}

fn full(text: Option<Cow<'_, str>>) -> Option<Cow<'_, str>> {
    text.filter(|text| !text.is_empty())
}

/// What content in parts says, and what its parts of reasoning say.
fn parts(content: &RawValue) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    let (mut said, mut thought) = (String::new(), String::new());
    for part in elements(content.get()).unwrap_or_default() {
        let kind = Members::parse(part.get()).ok().and_then(|part| text_of(part.present("type")?));
        let of = if matches!(kind.as_deref(), Some("thinking" | "reasoning")) { &mut thought } else { &mut said };
        of.push_str(&joined(part, DEEPEST - 1).unwrap_or_default());
    }
    (Some(said.into()), Some(thought.into()))
}

/// The text of a value that is one, or of its parts together.
fn joined(value: &RawValue, deepest: usize) -> Option<Cow<'_, str>> {
    const OF_PARTS: [&str; 5] = ["text", "thinking", "reasoning", "summary", "refusal"];
    let deeper = deepest.checked_sub(1);
    match value.get().as_bytes().first() {
        Some(b'"') => said_in(value),
        Some(b'[') => {
            let parts = elements(value.get()).ok()?;
            Some(parts.into_iter().filter_map(|part| joined(part, deeper?)).collect::<String>().into())
        }
        Some(b'{') => {
            let part = Members::parse(value.get()).ok()?;
            OF_PARTS.iter().find_map(|name| full(joined(part.present(name)?, deeper?)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> Vec<(Part, String)> {
        let message = RawValue::from_string(message.to_owned()).unwrap();
        texts(&message).into_iter().map(|text| (text.part, text.text.into_owned())).collect()
    }

    #[test]
    fn reasoning_is_read_under_whatever_name_and_once() {
        for message in [
            r#"{"reasoning_content":"hm"}"#,
            r#"{"reasoning":"hm"}"#,
            r#"{"thinking":"hm","content":null}"#,
            r#"{"reasoning_details":[{"type":"reasoning.text","text":"h"},{"type":"reasoning.summary","summary":"m"}]}"#,
            r#"{"reasoning_details":[{"type":"reasoning.encrypted","data":"xyz"},{"text":"hm"}]}"#,
            r#"{"reasoning":"hm","reasoning_content":"hm","reasoning_details":[{"type":"reasoning.text","text":"hm"}]}"#,
            r#"{"reasoning":"","reasoning_details":[{"text":"hm"}]}"#,
            r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"h"},{"type":"text","text":"m"}]}]}"#,
            r#"{"content":[{"type":"thinking","thinking":"hm"}]}"#,
        ] {
            assert_eq!(said(message), [(Part::Reasoning, "hm".to_owned())], "{message}");
        }
        assert!(said(r#"{"reasoning":7,"thinking":{},"reasoning_details":[7,{"text":7}]}"#).is_empty());
    }

    #[test]
    fn content_in_parts_is_their_text() {
        let parts = r#"{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a"},"b",
            {"type":"text","text":"\u0063"},{"type":"image_url","image_url":{"url":"x"}},{"type":"refusal","refusal":"d"}]}"#;
        let expected = [(Part::Reasoning, "hm".to_owned()), (Part::Content, "abcd".to_owned())];
        assert_eq!(said(parts), expected);
        // Deeper than anybody writes it there is nothing to be found.
        let deep = format!(r#"{{"content":{}"a"{}}}"#, "[".repeat(100), "]".repeat(100));
        assert!(said(&deep).is_empty());
    }

    #[test]
    fn words_of_audio_and_inputs_of_custom_tools_are_texts() {
        let message = r#"{"audio":{"id":"x","data":"AAAA","transcript":"hello"},
            "tool_calls":[{"index":3,"type":"custom","custom":{"name":"sh","input":"ls"}}]}"#;
        let expected = [
            (Part::Transcript, "hello".to_owned()),
            (Part::ToolName(3), "sh".to_owned()),
            (Part::ToolArguments(3), "ls".to_owned()),
        ];
        assert_eq!(said(message), expected);
    }
}
