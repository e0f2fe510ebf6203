//! What tests of several dialects make transcripts and conversations of.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::openai::{ContextPlacement, Outgoing, SpliceRules};
use crate::error::UpstreamError;
use crate::hub::{
    Block, Conversation, Event, ImageSource, Lost, Part, Reader, Role, Setting, SettingKind, Tool, Whole,
};
use crate::sse::{self, Piece, Scanner};
use crate::usage::Usage;

/// A call without anything of the gateway's.
pub(crate) const PLAIN: Outgoing<'static> = Outgoing {
    model: "real",
    public_model: "asked",
    context: None,
    placement: ContextPlacement::System,
    project_prompt: None,
    output_bound: None,
    max_output: None,
    member: None,
    anthropic: None,
    images: None,
};
/// One with passages and the project's prompt.
pub(crate) const BOTH: Outgoing<'static> =
    Outgoing { context: Some("CTX \"1\""), project_prompt: Some("RULES"), ..PLAIN };

/// What a reader makes of server-sent events, and how they ended.
pub(crate) fn read_events(reader: &mut dyn Reader, transcript: &str) -> (Whole, Result<(), UpstreamError>) {
    let mut scanner = Scanner::default();
    scanner.push(transcript.as_bytes());
    let mut blocks = Vec::new();
    while let Some(piece) = scanner.next_piece().unwrap() {
        if let Piece::Block(block) = piece {
            blocks.push(block);
        }
    }
    let parsed: Vec<_> = blocks.iter().map(|block| sse::Event::read(block, false)).collect();
    let mut events: Vec<Event<'_>> = Vec::new();
    let mut ended = Ok(());
    for event in parsed.iter().filter(|event| event.has_data()) {
        assert!(!reader.is_over());
        let name = event.name.map(|name| std::str::from_utf8(name).unwrap());
        ended = reader.read(name, &event.data, &mut events);
        if ended.is_err() {
            break;
        }
    }
    assert!(events.first().is_none_or(|event| matches!(event, Event::Start { .. })));
    assert!(events.iter().filter(|event| matches!(event, Event::Start { .. })).count() <= 1);
    assert!(events.iter().filter(|event| matches!(event, Event::Finish(_))).count() <= 1);
    (Whole::of(events), ended)
}

/// What was left out, in the words of the goldens.
pub(crate) fn words(lost: &[Lost]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for lost in lost {
        let word = match lost {
            Lost::Setting(name) => name,
            Lost::Effort => "effort",
            Lost::Budget => "budget",
            Lost::Format => "response_format",
            Lost::Schema => "response_format.json_schema",
            Lost::BesideSchema(member) => &format!("response_format.json_schema.{member}"),
            Lost::Stop => "stop",
            Lost::User => "user",
            Lost::ToolChoice => "tool_choice",
            Lost::OneAtATime => "parallel_tool_calls",
            Lost::Strict => "strict",
            Lost::CacheMark => "cache_control",
            Lost::Detail => "detail",
            Lost::Thought | Lost::Redacted => "reasoning",
            Lost::Signature => "reasoning.signature",
            Lost::CallSignature => "extra_content",
            Lost::Failure => "is_error",
        };
        if !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    words
}

pub(crate) fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

pub(crate) fn call(id: &str, name: &str, arguments: &str) -> Part {
    let [id, name, arguments] = [id, name, arguments].map(str::to_owned);
    Part::ToolCall { id, name, arguments, signature: None }
}

pub(crate) fn used(prompt_tokens: i64, completion_tokens: i64) -> Usage {
    Usage { prompt_tokens, completion_tokens, ..Usage::default() }
}

pub(crate) fn raw(json: &str) -> &RawValue {
    serde_json::from_str(json).unwrap()
}

pub(crate) fn says(text: &str) -> Block<'_> {
    Block::Text { text: Cow::Borrowed(text), cache: None }
}

pub(crate) fn asks<'a>(blocks: impl IntoIterator<Item = Block<'a>>) -> Conversation<'a> {
    let mut conversation = Conversation::default();
    conversation.say(Role::User, blocks);
    conversation
}

pub(crate) fn called<'a>(id: &'a str, name: &'a str, arguments: &'a str) -> Block<'a> {
    Block::ToolCall { id: id.into(), name: name.into(), arguments: arguments.into(), signature: None }
}

pub(crate) fn result<'a>(call_id: &'a str, content: Vec<Block<'a>>, is_error: bool) -> Block<'a> {
    Block::ToolResult { call_id: call_id.into(), name: None, content, is_error, cache: None }
}

pub(crate) fn inline<'a>(media_type: &'a str, data: &'a str) -> ImageSource<'a> {
    ImageSource::Base64 { media_type: media_type.into(), data: data.into() }
}

pub(crate) fn picture<'a>(source: ImageSource<'a>, detail: Option<&'a str>) -> Block<'a> {
    Block::Image { source, detail: detail.map(Into::into), cache: None }
}

pub(crate) fn document<'a>(media_type: &'a str, data: &'a str, name: Option<&'a str>) -> Block<'a> {
    Block::Document { media_type: media_type.into(), data: data.into(), name: name.map(Into::into), cache: None }
}

pub(crate) fn tool<'a>(name: &'a str, parameters: Option<&'a str>) -> Tool<'a> {
    Tool { name: name.into(), description: None, parameters: parameters.map(raw), strict: None, cache: None }
}

pub(crate) fn set<'a>(kind: SettingKind, name: &'static str, json: &'a str) -> Setting<'a> {
    Setting { kind, name, value: raw(json) }
}

/// One of each.
pub(crate) fn every_setting() -> Vec<Setting<'static>> {
    vec![
        set(SettingKind::Temperature, "temperature", "1.7"),
        set(SettingKind::TopP, "top_p", "0.9"),
        set(SettingKind::TopK, "top_k", "40"),
        set(SettingKind::Seed, "seed", "7"),
        set(SettingKind::FrequencyPenalty, "frequency_penalty", "-0.5"),
        set(SettingKind::PresencePenalty, "presence_penalty", "1"),
    ]
}

/// An answer that nothing is done to but that its model is called `asked`.
pub(crate) fn rules() -> SpliceRules {
    SpliceRules::of(&PLAIN, false)
}

/// Bytes in pieces, cut at places that may be any numbers.
pub(crate) fn cut<'a>(bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}
