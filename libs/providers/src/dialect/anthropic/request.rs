//! A client's Messages request, read without copying it.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::dialect::openai::{RequestError, read_known, strict, text_at};
use crate::inbound::Utterance;
use crate::json::{Members, elements, text_of};

/// What is read of a message or a block takes some hundred bytes, whatever its size is in the body.
const MAX_ITEMS: usize = 65_536;
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

/// What a message, the rules or a tool's result say.
#[derive(Clone, Debug)]
pub(super) enum Said<'a> {
    Nothing,
    Text(Cow<'a, str>),
    Blocks(Vec<Block<'a>>),
}

/// A block of content.
#[derive(Clone, Debug)]
pub(super) struct Block<'a> {
    pub(super) kind: Cow<'a, str>,
    /// Of a block of text.
    pub(super) text: Option<Cow<'a, str>>,
    /// What the result of a tool says.
    pub(super) result: Said<'a>,
    pub(super) members: Members<'a>,
}

impl Block<'_> {
    pub(super) fn is_result(&self) -> bool {
        self.kind == "tool_result"
    }

    /// Whether the prompt is to be cached up to it.
    pub(super) fn is_marked(&self) -> bool {
        self.members.present("cache_control").is_some()
    }
}

impl<'a> Said<'a> {
    pub(super) fn blocks(&self) -> &[Block<'a>] {
        match self {
            Self::Blocks(blocks) => blocks,
            Self::Nothing | Self::Text(_) => &[],
        }
    }

    /// Its text, blocks joined by a line end.
    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Nothing => Cow::Borrowed(""),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Blocks(blocks) => {
                let texts: Vec<&str> = blocks.iter().filter_map(|block| block.text.as_deref()).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }
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
        let blocks = self.content.blocks();
        !blocks.is_empty() && blocks.iter().all(Block::is_result)
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
        let ragmux = members.present("ragmux").and_then(|value| Members::parse(value.get()).ok());
        let ragmux = ragmux.map(|ragmux| strict("ragmux", ragmux, &["include_context"])).transpose()?;
        let mut room = MAX_ITEMS;
        Ok(Self {
            model: match members.present("model") {
                Some(value) => text_at(value, || "model".to_owned(), "a string")?,
                None => Cow::Borrowed(""),
            },
            max_tokens: match members.present("max_tokens").map(|value| value.get().parse::<u64>()) {
                Some(Ok(tokens)) if tokens > 0 => tokens,
                Some(_) => return Err(invalid("max_tokens", "a whole number, one or more")),
                None if is_bounded => return Err(RequestError::Missing("max_tokens")),
                None => 1,
            },
            stream: match members.present("stream").map(RawValue::get) {
                None | Some("false") => false,
                Some("true") => true,
                Some(_) => return Err(invalid("stream", "true or false")),
            },
            user,
            metadata,
            include_context: ragmux
                .is_some_and(|ragmux| ragmux.get("include_context").is_some_and(|value| value.get() == "true")),
            system: said("system", members.present("system"), &mut room)?,
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

    /// Whether the conversation ends with a tool's result.
    #[must_use]
    pub fn ends_with_tool_result(&self) -> bool {
        self.messages.last().is_some_and(|message| message.content.blocks().iter().any(Block::is_result))
    }
}

pub(super) fn invalid(field: impl Into<String>, must: &'static str) -> RequestError {
    RequestError::Invalid { field: field.into(), must }
}

/// A member that must be an object.
pub(super) fn object<'a>(path: &str, value: &'a RawValue, known: &[&'static str]) -> Result<Members<'a>, RequestError> {
    strict(path, Members::parse(value.get()).map_err(|_| invalid(path, "an object"))?, known)
}

/// Takes room for so many items more.
fn take(room: &mut usize, items: usize) -> Result<(), RequestError> {
    *room = room.checked_sub(items).ok_or_else(|| invalid("messages", "at most 65536 messages and blocks"))?;
    Ok(())
}

fn messages<'a>(members: &Members<'a>, room: &mut usize) -> Result<Vec<Message<'a>>, RequestError> {
    let value = members.present("messages").ok_or(RequestError::Missing("messages"))?;
    let list = elements(value.get()).map_err(|_| invalid("messages", "an array"))?;
    if list.is_empty() {
        return Err(RequestError::Missing("messages"));
    }
    take(room, list.len())?;
    list.into_iter().enumerate().map(|(at, raw)| message(&format!("messages[{at}]"), raw, room)).collect()
}

fn message<'a>(path: &str, raw: &'a RawValue, room: &mut usize) -> Result<Message<'a>, RequestError> {
    let members = object(path, raw, &KNOWN_IN_MESSAGES)?;
    let role = members.present("role").and_then(text_of);
    let role = role
        .filter(|role| matches!(&**role, "user" | "assistant" | "system"))
        .ok_or_else(|| invalid(format!("{path}.role"), "user or assistant"))?;
    let path = format!("{path}.content");
    let raw_content = members.present("content").ok_or_else(|| invalid(path.as_str(), CONTENT))?;
    Ok(Message { role, content: said(&path, Some(raw_content), room)?, raw_content, members })
}

const CONTENT: &str = "a string or an array of blocks";
const KIND: &str = "a string such as text or image";

fn said<'a>(path: &str, value: Option<&'a RawValue>, room: &mut usize) -> Result<Said<'a>, RequestError> {
    let Some(value) = value else { return Ok(Said::Nothing) };
    if value.get().starts_with('"') {
        return text_at(value, || path.to_owned(), CONTENT).map(Said::Text);
    }
    let list = elements(value.get()).map_err(|_| invalid(path, CONTENT))?;
    take(room, list.len())?;
    let blocks = list.into_iter().enumerate().map(|(at, raw)| block(&format!("{path}[{at}]"), raw, room));
    blocks.collect::<Result<_, _>>().map(Said::Blocks)
}

fn block<'a>(path: &str, raw: &'a RawValue, room: &mut usize) -> Result<Block<'a>, RequestError> {
    let members = object(path, raw, &KNOWN_IN_MESSAGES)?;
    let kind = match members.present("type") {
        Some(kind) => text_at(kind, || format!("{path}.type"), KIND)?,
        None => return Err(invalid(format!("{path}.type"), KIND)),
    };
    let text = match members.present("text") {
        Some(value) if kind == "text" => Some(text_at(value, || format!("{path}.text"), "a string")?),
        None if kind == "text" => return Err(invalid(format!("{path}.text"), "a string")),
        Some(_) | None => None,
    };
    let result = match members.present("content") {
        // Nested no deeper than once: results hold no results.
        Some(value) if kind == "tool_result" => said(&format!("{path}.content"), Some(value), room)?,
        Some(_) | None => Said::Nothing,
    };
    Ok(Block { kind, text, result, members })
}

fn tools<'a>(members: &Members<'a>, room: &mut usize) -> Result<Vec<Members<'a>>, RequestError> {
    let Some(value) = members.present("tools") else { return Ok(Vec::new()) };
    let list = elements(value.get()).map_err(|_| invalid("tools", "an array"))?;
    take(room, list.len())?;
    let known = ["type", "name", "description", "input_schema", "cache_control"];
    list.into_iter().enumerate().map(|(at, tool)| object(&format!("tools[{at}]"), tool, &known)).collect()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
