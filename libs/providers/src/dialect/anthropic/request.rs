//! A client's Messages request, read without copying it.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::dialect::fields::{includes_context, invalid, object, switch};
use crate::dialect::openai::{RequestError, optional_text, read_known};
use crate::dialect::said::{Piece, Room, Said};
use crate::inbound::Utterance;
use crate::json::{Members, elements, text_of};

/// The members that are read, or that change what a call costs.
const KNOWN: [&str; 23] = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "stream",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    "metadata",
    "service_tier",
    "container",
    "mcp_servers",
    "speed",
    "inference_geo",
    "thread",
    "fallbacks",
    "fallback_credit_token",
    "compaction",
    "context_management",
    "ragmux",
];
/// The members of messages and blocks that are read.
const KNOWN_IN_MESSAGES: [&str; 16] = [
    "role",
    "content",
    "type",
    "text",
    "source",
    "title",
    "id",
    "name",
    "input",
    "tool_use_id",
    "is_error",
    "thinking",
    "signature",
    "data",
    "media_type",
    "cache_control",
];

/// Whether a piece is what a tool gave.
pub(super) fn is_result(piece: &Piece<'_>) -> bool {
    piece.kind == "tool_result"
}

/// Whether the prompt is to be cached up to a piece.
pub(super) fn is_marked(piece: &Piece<'_>) -> bool {
    piece.members.present("cache_control").is_some()
}

/// One message.
#[derive(Clone, Debug)]
pub(super) struct Message<'a> {
    pub(super) role: Cow<'a, str>,
    pub(super) content: Said<'a>,
    pub(super) raw_content: &'a RawValue,
    pub(super) members: Members<'a>,
}

impl Message<'_> {
    /// Whether it says nothing but what tools gave.
    fn is_of_results(&self) -> bool {
        let pieces = self.content.pieces();
        !pieces.is_empty() && pieces.iter().all(is_result)
    }
}

/// A client's Messages request. Everything it does not name is kept in the body it borrows from.
#[derive(Clone, Debug)]
pub struct MessagesRequest<'a> {
    /// The model name asked for; empty when none is given.
    pub model: Cow<'a, str>,
    /// The most tokens of the answer, thoughts included.
    pub max_tokens: u64,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// `metadata.user_id`.
    pub user: Option<Cow<'a, str>>,
    /// `metadata` as sent.
    pub metadata: Option<&'a RawValue>,
    /// Whether the passages used are to be returned (`ragmux.include_context`).
    pub include_context: bool,
    pub(super) system: Said<'a>,
    pub(super) messages: Vec<Message<'a>>,
    pub(super) tools: Vec<Members<'a>>,
    pub(super) text: &'a str,
    pub(super) members: Members<'a>,
}

impl<'a> MessagesRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        Self::read(body, true)
    }

    /// Reads the body of a request to count tokens, which needs no `max_tokens`.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse_count(body: &'a [u8]) -> Result<Self, RequestError> {
        Self::read(body, false)
    }

    fn read(body: &'a [u8], is_bounded: bool) -> Result<Self, RequestError> {
        let (text, members) = read_known(body, &KNOWN)?;
        let metadata = members.present("metadata");
        let user = match metadata {
            Some(value) => object("metadata", value, &["user_id"])?.present("user_id").and_then(text_of),
            None => None,
        };
        let mut room = Room::new("messages", "at most 65536 messages and blocks");
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            max_tokens: match members.present("max_tokens").map(|value| value.get().parse::<u64>()) {
                Some(Ok(tokens)) if tokens > 0 => tokens,
                Some(_) => return Err(invalid("max_tokens", "a whole number, one or more")),
                None if is_bounded => return Err(RequestError::Missing("max_tokens")),
                None => 1,
            },
            stream: switch(&members, "stream")?.unwrap_or(false),
            user,
            metadata,
            include_context: includes_context(&members)?,
            system: Said::read("system", members.present("system"), CONTENT, &mut room, block)?,
            messages: messages(&members, &mut room)?,
            tools: tools(&members, &mut room)?,
            text,
            members,
        })
    }

    /// The text of the last message of the user's.
    #[must_use]
    pub fn last_user_text(&self) -> Option<Cow<'_, str>> {
        let said = |message: &&Message<'_>| message.role == "user" && !message.is_of_results();
        self.messages.iter().rev().find(said).map(|message| message.content.text())
    }

    /// See [`crate::Inbound::utterances`].
    pub(crate) fn utterances(&self) -> Vec<Utterance<'_>> {
        let said = self.messages.iter().filter_map(|message| {
            let is_users = match message.role.as_ref() {
                "user" => true,
                "assistant" => false,
                _ => return None,
            };
            let text = message.content.text();
            (!text.trim().is_empty()).then_some(Utterance { is_users, text })
        });
        said.collect()
    }

    /// See [`crate::Inbound::ends_with_tool_result`].
    #[must_use]
    pub fn ends_with_tool_result(&self) -> bool {
        self.messages.last().is_some_and(Message::is_of_results)
    }
}

fn messages<'a>(members: &Members<'a>, room: &mut Room) -> Result<Vec<Message<'a>>, RequestError> {
    let value = members.present("messages").ok_or(RequestError::Missing("messages"))?;
    let list = elements(value.get()).map_err(|_| invalid("messages", "an array"))?;
    if list.is_empty() {
        return Err(RequestError::Missing("messages"));
    }
    room.take(list.len())?;
    list.into_iter().enumerate().map(|(at, raw)| message(&format!("messages[{at}]"), raw, room)).collect()
}

fn message<'a>(path: &str, raw: &'a RawValue, room: &mut Room) -> Result<Message<'a>, RequestError> {
    let members = object(path, raw, &KNOWN_IN_MESSAGES)?;
    let role = members.present("role").and_then(text_of);
    let role = role
        .filter(|role| matches!(&**role, "user" | "assistant" | "system"))
        .ok_or_else(|| invalid(format!("{path}.role"), "user or assistant"))?;
    let path = format!("{path}.content");
    let raw_content = members.present("content").ok_or_else(|| invalid(path.as_str(), CONTENT))?;
    let content = Said::read(&path, Some(raw_content), CONTENT, room, block)?;
    Ok(Message { role, content, raw_content, members })
}

const CONTENT: &str = "a string or an array of blocks";
const KIND: &str = "a string such as text or image";

fn block<'a>(path: &str, raw: &'a RawValue, room: &mut Room) -> Result<Piece<'a>, RequestError> {
    let members = object(path, raw, &KNOWN_IN_MESSAGES)?;
    let kind = Piece::text_of(path, &members, "type", KIND)?;
    let text = match &*kind {
        "text" => Some(Piece::text_of(path, &members, "text", "a string")?),
        _ => None,
    };
    let inner = match members.present("content") {
        // Results in results are read as well: how deep they are is bounded with all other nesting.
        Some(value) if kind == "tool_result" => {
            Said::read(&format!("{path}.content"), Some(value), CONTENT, room, block)?
        }
        Some(_) | None => Said::Nothing,
    };
    Ok(Piece { kind, text, inner, members })
}

fn tools<'a>(members: &Members<'a>, room: &mut Room) -> Result<Vec<Members<'a>>, RequestError> {
    let Some(value) = members.present("tools") else { return Ok(Vec::new()) };
    let list = elements(value.get()).map_err(|_| invalid("tools", "an array"))?;
    room.take(list.len())?;
    let known = ["type", "name", "description", "input_schema", "cache_control"];
    list.into_iter().enumerate().map(|(at, tool)| object(&format!("tools[{at}]"), tool, &known)).collect()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
