//! What tests of several dialects make transcripts and conversations of.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::openai::{ContextPlacement, Outgoing};
use crate::error::UpstreamError;
use crate::hub::{Block, Conversation, Event, Part, Reader, Role, Whole};
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
    anthropic_beta: None,
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
