//! A client's Responses request, read without copying it.
//!
//! Nothing is kept here from one call to the next, so what refers to an earlier answer, or has the provider run
//! something in the background, is refused by its name.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::dialect::fields::{includes_context, invalid, object, switch};
use crate::dialect::openai::{RequestError, optional_text, read_known, text_at};
use crate::dialect::said::{Piece, Room, Said};
use crate::inbound::Utterance;
use crate::json::{Members, elements, text_of};

/// The members that are read, or that change what a call costs.
const KNOWN: [&str; 22] = [
    "model",
    "input",
    "instructions",
    "stream",
    "max_output_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "user",
    "safety_identifier",
    "metadata",
    "include",
    "store",
    "truncation",
    "service_tier",
    "previous_response_id",
    "conversation",
    "background",
    "prompt",
    "ragmux",
];
/// The members of items and parts that are read.
const KNOWN_IN_ITEMS: [&str; 19] = [
    "type",
    "role",
    "content",
    "text",
    "refusal",
    "image_url",
    "detail",
    "file_data",
    "file_id",
    "file_url",
    "filename",
    "id",
    "call_id",
    "name",
    "arguments",
    "input",
    "output",
    "summary",
    "encrypted_content",
];
/// The members of tools that are read.
const KNOWN_IN_TOOLS: [&str; 6] = ["type", "name", "description", "parameters", "strict", "format"];
/// What needs a memory that is not there, and how a request has to be without it.
const REMEMBERED: [(&str, &str); 3] = [
    ("previous_response_id", "absent: no answers are kept here; send the whole conversation as input"),
    ("conversation", "absent: no conversations are kept here; send the whole of it as input"),
    ("prompt", "absent: no prompts are kept here; send its text as instructions or input"),
];

const CONTENT: &str = "a string or an array of parts";
const KIND: &str = "a string such as input_text or input_image";
const ITEM_KIND: &str = "a string such as message or function_call_output";

/// What an item of the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    /// A call of a function or of a tool with free input.
    Call,
    Output,
    Reasoning,
    /// Not read here; a provider of the same dialect may know it.
    Other,
}

/// One item of the input.
#[derive(Clone, Debug)]
pub(super) struct Item<'a> {
    pub(super) kind: Kind,
    /// The type as sent; `message` where it is left out.
    pub(super) name: Cow<'a, str>,
    /// Of a message; empty for others.
    pub(super) role: Cow<'a, str>,
    /// The content of a message, the output of a tool, the summary of a thought.
    pub(super) said: Said<'a>,
    pub(super) raw_said: Option<&'a RawValue>,
    pub(super) members: Members<'a>,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Input<'a> {
    Text(Cow<'a, str>),
    Items(Vec<Item<'a>>),
}

/// A client's Responses request. Everything it does not name is kept in the body it borrows from.
#[derive(Clone, Debug)]
pub struct ResponsesRequest<'a> {
    /// The model name asked for; empty when none is given.
    pub model: Cow<'a, str>,
    /// The most tokens of the answer, reasoning included; `None` when nothing bounds it.
    pub max_output_tokens: Option<u64>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// `safety_identifier`, else `user`.
    pub user: Option<Cow<'a, str>>,
    /// `metadata` as sent.
    pub metadata: Option<&'a RawValue>,
    /// Whether the passages used are to be returned (`ragmux.include_context`).
    pub include_context: bool,
    pub(super) instructions: Option<Cow<'a, str>>,
    pub(super) input: Input<'a>,
    pub(super) tools: Vec<Members<'a>>,
    /// Whether the client asks for the answer to be kept.
    pub(super) wants_store: bool,
    pub(super) text: &'a str,
    pub(super) members: Members<'a>,
}

impl<'a> ResponsesRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        let (text, members) = read_known(body, &KNOWN)?;
        for (name, must) in REMEMBERED {
            if members.present(name).is_some() {
                return Err(invalid(name, must));
            }
        }
        if switch(&members, "background")? == Some(true) {
            return Err(invalid("background", "false: answers are given while the client waits"));
        }
        let mut room = Room::new("input", "at most 65536 items and parts");
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            max_output_tokens: match members.present("max_output_tokens").map(|value| value.get().parse::<u64>()) {
                None => None,
                Some(Ok(tokens)) if tokens > 0 => Some(tokens),
                Some(_) => return Err(invalid("max_output_tokens", "a whole number, one or more")),
            },
            stream: switch(&members, "stream")?.unwrap_or(false),
            user: ["safety_identifier", "user"].iter().find_map(|name| members.present(name).and_then(text_of)),
            metadata: members.present("metadata"),
            include_context: includes_context(&members)?,
            instructions: optional_text(&members, "instructions")?,
            input: input(&members, &mut room)?,
            tools: tools(&members, &mut room)?,
            wants_store: switch(&members, "store")?.unwrap_or(false),
            text,
            members,
        })
    }

    /// The text of the last message of the user's.
    #[must_use]
    pub fn last_user_text(&self) -> Option<Cow<'_, str>> {
        match &self.input {
            Input::Text(text) => Some(Cow::Borrowed(text)),
            Input::Items(items) => items.iter().rev().find(|item| item.is_user()).map(|item| item.said.text()),
        }
    }

    /// See [`crate::Inbound::utterances`].
    pub(crate) fn utterances(&self) -> Vec<Utterance<'_>> {
        if let Input::Text(text) = &self.input {
            let utterance = Utterance { is_users: true, text: Cow::Borrowed(text) };
            return Some(utterance).filter(|utterance| !utterance.text.trim().is_empty()).into_iter().collect();
        }
        let said = self.items().iter().filter(|item| item.kind == Kind::Message).filter_map(|item| {
            let is_users = match item.role.as_ref() {
                "user" => true,
                "assistant" => false,
                _ => return None,
            };
            let text = item.said.text();
            (!text.trim().is_empty()).then_some(Utterance { is_users, text })
        });
        said.collect()
    }

    /// See [`crate::Inbound::ends_with_tool_result`].
    #[must_use]
    pub fn ends_with_tool_result(&self) -> bool {
        self.items().last().is_some_and(|item| item.kind == Kind::Output)
    }

    pub(super) fn items(&self) -> &[Item<'a>] {
        match &self.input {
            Input::Items(items) => items,
            Input::Text(_) => &[],
        }
    }
}

impl Item<'_> {
    pub(super) fn is_user(&self) -> bool {
        self.kind == Kind::Message && self.role == "user"
    }
}

fn input<'a>(members: &Members<'a>, room: &mut Room) -> Result<Input<'a>, RequestError> {
    const MUST: &str = "a string or an array of items";
    let value = members.present("input").ok_or(RequestError::Missing("input"))?;
    if value.get().starts_with('"') {
        return text_at(value, || "input".to_owned(), MUST).map(Input::Text);
    }
    let list = elements(value.get()).map_err(|_| invalid("input", MUST))?;
    if list.is_empty() {
        return Err(RequestError::Missing("input"));
    }
    room.take(list.len())?;
    let items = list.into_iter().enumerate().map(|(at, raw)| item(&format!("input[{at}]"), raw, room));
    items.collect::<Result<_, _>>().map(Input::Items)
}

fn item<'a>(path: &str, raw: &'a RawValue, room: &mut Room) -> Result<Item<'a>, RequestError> {
    let members = object(path, raw, &KNOWN_IN_ITEMS)?;
    let kind_field = || format!("{path}.type");
    let role = members.present("role").and_then(text_of);
    let name = match members.present("type") {
        Some(kind) => text_at(kind, kind_field, ITEM_KIND)?,
        None if role.is_some() => Cow::Borrowed("message"),
        None => return Err(invalid(kind_field(), ITEM_KIND)),
    };
    let (kind, field) = match &*name {
        "message" => (Kind::Message, "content"),
        "function_call" | "custom_tool_call" => (Kind::Call, ""),
        "function_call_output" | "custom_tool_call_output" => (Kind::Output, "output"),
        // Some models tell their thoughts themselves and not only a summary of them.
        "reasoning" if members.present("summary").is_none_or(|summary| summary.get() == "[]") => {
            (Kind::Reasoning, "content")
        }
        "reasoning" => (Kind::Reasoning, "summary"),
        "item_reference" => {
            return Err(invalid(kind_field(), "another than item_reference: no items are kept here; send the item"));
        }
        _ => (Kind::Other, ""),
    };
    let role = match role.filter(|_| kind == Kind::Message) {
        Some(role) if matches!(&*role, "user" | "assistant" | "system" | "developer") => role,
        _ if kind != Kind::Message => Cow::Borrowed(""),
        _ => return Err(invalid(format!("{path}.role"), "user, assistant, system or developer")),
    };
    let raw_said = members.present(field);
    let said = Said::read(&format!("{path}.{field}"), raw_said, CONTENT, room, part)?;
    if kind == Kind::Message && raw_said.is_none() {
        return Err(invalid(format!("{path}.content"), CONTENT));
    }
    Ok(Item { kind, name, role, said, raw_said, members })
}

fn part<'a>(path: &str, raw: &'a RawValue, _: &mut Room) -> Result<Piece<'a>, RequestError> {
    let members = object(path, raw, &KNOWN_IN_ITEMS)?;
    let kind = Piece::text_of(path, &members, "type", KIND)?;
    let text = match &*kind {
        "input_text" | "output_text" | "summary_text" | "reasoning_text" => Some("text"),
        "refusal" => Some("refusal"),
        _ => None,
    };
    let text = text.map(|name| Piece::text_of(path, &members, name, "a string")).transpose()?;
    Ok(Piece { kind, text, inner: Said::Nothing, members })
}

/// Tools that the client runs itself; the provider's own need what is not here, and have prices of their own.
fn tools<'a>(members: &Members<'a>, room: &mut Room) -> Result<Vec<Members<'a>>, RequestError> {
    let Some(value) = members.present("tools") else { return Ok(Vec::new()) };
    let list = elements(value.get()).map_err(|_| invalid("tools", "an array"))?;
    room.take(list.len())?;
    let read = |(at, raw): (usize, &'a RawValue)| {
        let path = format!("tools[{at}]");
        let tool = object(&path, raw, &KNOWN_IN_TOOLS)?;
        match tool.present("type").and_then(text_of).as_deref() {
            Some("function" | "custom") => Ok(tool),
            _ => Err(invalid(format!("{path}.type"), "function or custom: no tools are run here but the client's")),
        }
    };
    list.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
