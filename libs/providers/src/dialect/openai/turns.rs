//! The messages of a request as turns: rules apart, results of tools right behind their calls.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde_json::value::RawValue;

use super::conversation::object_at;
use super::request::{ChatMessage, Content, MAX_ITEMS, Part, RequestError};
use crate::dialect::fields::{invalid, required};
use crate::hub::{Block, Conversation, ImageSource, Role, Signer, Turn, drop_path, file_of, is_nothing, list_rest};
use crate::json::{Members, elements, said_in, text_of};

/// The members of messages and of parts that have a place in a conversation.
const PLACED: [&str; 11] = [
    "role",
    "content",
    "tool_calls",
    "function_call",
    "tool_call_id",
    "cache_control",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "refusal",
    "extra_content",
];
const PLACED_IN_PARTS: [&str; 7] = ["type", "text", "image_url", "file", "refusal", "thinking", "cache_control"];

/// Reads the messages into the turns and the rules of a conversation.
pub(super) fn read<'s>(messages: &'s [ChatMessage<'_>], into: &mut Conversation<'s>) -> Result<(), RequestError> {
    let mut reading =
        Reading { into, calls: HashMap::new(), functions: HashMap::new(), results: BTreeMap::new(), room: MAX_ITEMS };
    for (at, message) in messages.iter().enumerate() {
        reading.message(at, message)?;
    }
    reading.place_results();
    if into.turns.is_empty() {
        return Err(invalid("messages", "a conversation in which somebody says something beside its rules"));
    }
    Ok(())
}

struct Reading<'c, 's> {
    into: &'c mut Conversation<'s>,
    /// The turn of each call and its tool's name, by the call's id.
    calls: HashMap<Cow<'s, str>, (usize, Cow<'s, str>)>,
    /// The id given to the last call of a function, by its name: calls in the old form have none.
    functions: HashMap<Cow<'s, str>, Cow<'s, str>>,
    /// What goes to the front of a turn.
    results: BTreeMap<usize, Vec<Block<'s>>>,
    room: usize,
}

impl<'s> Reading<'_, 's> {
    fn message(&mut self, at: usize, message: &'s ChatMessage<'_>) -> Result<(), RequestError> {
        let path = format!("messages[{at}]");
        let is_result = match message.role.as_ref() {
            "system" | "developer" => {
                let rules = content(&path, message, Place::Rules, &mut self.into.dropped)?;
                self.into.system.extend(rules);
                false
            }
            "user" => {
                let said = content(&path, message, Place::Speech, &mut self.into.dropped)?;
                self.into.say(Role::User, said);
                false
            }
            "assistant" => {
                self.assistant(at, &path, message)?;
                false
            }
            "tool" | "function" => {
                self.result(&path, message)?;
                true
            }
            _ => {
                return Err(invalid(format!("{path}.role"), "system, developer, user, assistant, tool or function"));
            }
        };
        for (name, value) in message.members.iter() {
            let placed = PLACED.contains(&name) || (is_result && name == "name");
            if !placed && !is_nothing(value) {
                drop_path(&mut self.into.dropped, format!("messages[].{name}"));
            }
        }
        Ok(())
    }

    fn assistant(&mut self, at: usize, path: &str, message: &'s ChatMessage<'_>) -> Result<(), RequestError> {
        let mut blocks = reasoning(&message.members);
        blocks.extend(content(path, message, Place::Speech, &mut self.into.dropped)?);
        if let Some(refusal) = message.members.present("refusal").and_then(text_of).filter(|text| !text.is_empty()) {
            blocks.push(Block::Text { text: refusal, cache: None });
        }
        let first_call = blocks.len();
        if let Some(calls) = message.tool_calls {
            let field = format!("{path}.tool_calls");
            let calls = elements(calls.get()).map_err(|_| invalid(field.as_str(), "an array"))?;
            self.room = self
                .room
                .checked_sub(calls.len())
                .ok_or_else(|| invalid("messages", "a conversation of at most 65536 calls of tools"))?;
            for (number, call) in calls.into_iter().enumerate() {
                blocks.push(tool_call(&format!("{field}[{number}]"), call, &mut self.into.dropped)?);
            }
        }
        if let Some(call) = message.members.present("function_call") {
            let (name, arguments) = function(&format!("{path}.function_call"), call, &mut self.into.dropped)?;
            let id = Cow::Owned(format!("call_{at}"));
            self.functions.insert(name.clone(), Cow::clone(&id));
            blocks.push(Block::ToolCall { id, name, arguments, signature: None });
        }
        let calls: Vec<_> = blocks.iter().skip(first_call).filter_map(id_and_name).collect();
        self.into.say(Role::Assistant, blocks);
        let turn = self.into.turns.len().saturating_sub(1);
        self.calls.extend(calls.into_iter().map(|(id, name)| (id, (turn, name))));
        Ok(())
    }

    fn result(&mut self, path: &str, message: &'s ChatMessage<'_>) -> Result<(), RequestError> {
        let name = message.members.present("name").and_then(text_of).filter(|name| !name.is_empty());
        let (field, call_id) = if message.role == "function" {
            (format!("{path}.name"), name.as_ref().and_then(|name| self.functions.get(name)).cloned())
        } else {
            (format!("{path}.tool_call_id"), message.members.present("tool_call_id").and_then(text_of))
        };
        let call = call_id.and_then(|id| Some((self.calls.get(&id)?.clone(), id)));
        let ((turn, name), call_id) = call.ok_or_else(|| invalid(field, "that of an earlier call of a tool"))?;
        let content = content(path, message, Place::Result, &mut self.into.dropped)?;
        if self.into.turns.len() <= turn + 1 {
            self.into.turns.push(Turn { role: Role::User, blocks: Vec::new() });
        }
        let cache = message.members.present("cache_control");
        let result = Block::ToolResult { call_id, name: Some(name), content, is_error: false, cache };
        self.results.entry(turn + 1).or_default().push(result);
        Ok(())
    }

    fn place_results(&mut self) {
        for (turn, results) in std::mem::take(&mut self.results) {
            if let Some(turn) = self.into.turns.get_mut(turn) {
                turn.blocks.splice(..0, results);
            }
        }
    }
}

fn id_and_name<'s>(block: &Block<'s>) -> Option<(Cow<'s, str>, Cow<'s, str>)> {
    match block {
        Block::ToolCall { id, name, .. } => Some((id.clone(), name.clone())),
        _ => None,
    }
}

/// Where a content stands, which decides what it may be made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Rules,
    Speech,
    /// Its cache mark is the result's.
    Result,
}

fn content<'s>(
    path: &str,
    message: &'s ChatMessage<'_>,
    place: Place,
    dropped: &mut Vec<Cow<'s, str>>,
) -> Result<Vec<Block<'s>>, RequestError> {
    let mut blocks = match &message.content {
        Content::None => Vec::new(),
        Content::Text(text) if text.is_empty() => Vec::new(),
        Content::Text(text) => vec![Block::Text { text: Cow::Borrowed(text), cache: None }],
        Content::Parts(parts) => {
            let mut blocks = Vec::with_capacity(parts.len());
            for (at, part) in parts.iter().enumerate() {
                self::part(&format!("{path}.content[{at}]"), part, place, &mut blocks, dropped)?;
                for (name, value) in part.members.iter() {
                    if !PLACED_IN_PARTS.contains(&name) && !is_nothing(value) {
                        drop_path(dropped, format!("messages[].content[].{name}"));
                    }
                }
            }
            blocks
        }
    };
    // A mark on the message is one on its end.
    if let Some(mark) = message.members.present("cache_control").filter(|_| place != Place::Result)
        && let Some(Block::Text { cache, .. } | Block::Image { cache, .. } | Block::Document { cache, .. }) =
            blocks.last_mut()
    {
        cache.get_or_insert(mark);
    }
    Ok(blocks)
}

fn part<'s>(
    path: &str,
    part: &'s Part<'_>,
    place: Place,
    blocks: &mut Vec<Block<'s>>,
    dropped: &mut Vec<Cow<'_, str>>,
) -> Result<(), RequestError> {
    const MUST: &str = "text, image_url or file: the provider has no place for anything else";
    let cache = part.members.present("cache_control");
    match part.kind.as_ref() {
        "text" => {
            let text = part.text.as_deref().unwrap_or_default();
            if !text.is_empty() {
                blocks.push(Block::Text { text: Cow::Borrowed(text), cache });
            }
        }
        _ if place == Place::Rules => return Err(invalid(format!("{path}.type"), "text, as in all rules")),
        "refusal" => {
            let text = required(path, &part.members, "refusal")?;
            blocks.push(Block::Text { text, cache });
        }
        "image_url" => {
            let field = format!("{path}.image_url");
            let value = part.members.present("image_url").ok_or_else(|| invalid(field.as_str(), "an object"))?;
            let (url, detail) = match text_of(value) {
                Some(url) => (url, None),
                None => {
                    let members = object_at(&field, value)?;
                    list_rest(&field, &members, &["url", "detail"], dropped);
                    (required(&field, &members, "url")?, members.present("detail").and_then(text_of))
                }
            };
            let source = ImageSource::of_url(url).filter(ImageSource::is_plausible).ok_or_else(|| {
                invalid(field, "an http or https URL; a data: URL must name its media type and be base64")
            })?;
            blocks.push(Block::Image { source, detail, cache });
        }
        "file" => {
            let field = format!("{path}.file");
            let value = part.members.present("file").ok_or_else(|| invalid(field.as_str(), "an object"))?;
            blocks.push(file(&field, value, cache, dropped)?);
        }
        // As Mistral's models answer, and want it back.
        "thinking" => {
            let text = part.members.present("thinking").map(thinking).unwrap_or_default();
            if !text.is_empty() {
                blocks.push(Block::Reasoning { text, signature: None });
            }
        }
        _ => return Err(invalid(format!("{path}.type"), MUST)),
    }
    Ok(())
}

fn file<'s>(
    field: &str,
    value: &'s RawValue,
    cache: Option<&'s RawValue>,
    dropped: &mut Vec<Cow<'_, str>>,
) -> Result<Block<'s>, RequestError> {
    let members = object_at(field, value)?;
    list_rest(field, &members, &["filename", "file_data"], dropped);
    let must = "base64 data: a file's id means nothing to another provider";
    let data = members.present("file_data").and_then(text_of);
    let data = data.filter(|data| !data.is_empty()).ok_or_else(|| invalid(format!("{field}.file_data"), must))?;
    let (media_type, data) = file_of(data).ok_or_else(|| invalid(format!("{field}.file_data"), must))?;
    let name = members.present("filename").and_then(text_of);
    Ok(Block::Document { media_type, data, name, cache })
}

fn tool_call<'s>(path: &str, call: &'s RawValue, dropped: &mut Vec<Cow<'_, str>>) -> Result<Block<'s>, RequestError> {
    let members = object_at(path, call)?;
    let signature = thought_signature(&members);
    // `index` is of streams, from which some clients keep it.
    let placed = ["id", "type", "index", "function", "extra_content"];
    let placed = if signature.is_some() { &placed[..] } else { placed.split_last().map_or(&[][..], |(_, rest)| rest) };
    list_rest(path, &members, placed, dropped);
    let field = format!("{path}.function");
    let value = members.present("function").ok_or_else(|| invalid(field.as_str(), "an object"))?;
    let (name, arguments) = function(&field, value, dropped)?;
    Ok(Block::ToolCall { id: required(path, &members, "id")?, name, arguments, signature })
}

fn function<'s>(
    path: &str,
    value: &'s RawValue,
    dropped: &mut Vec<Cow<'_, str>>,
) -> Result<(Cow<'s, str>, Cow<'s, str>), RequestError> {
    let members = object_at(path, value)?;
    list_rest(path, &members, &["name", "arguments"], dropped);
    let arguments = match members.present("arguments") {
        // Some clients send the object itself.
        Some(value) => text_of(value).unwrap_or(Cow::Borrowed(value.get())),
        None => Cow::Borrowed(""),
    };
    Ok((required(path, &members, "name")?, arguments))
}

/// The marked signature of a call: `extra_content.google.thought_signature`, where Gemini's own OpenAI-compatible API has it too.
pub(crate) fn thought_signature<'a>(call: &Members<'a>) -> Option<Cow<'a, str>> {
    Some(Signer::Gemini.signed(signature_as_sent(call)?)).filter(|signature| !signature.is_empty())
}

pub(super) fn signature_as_sent<'a>(call: &Members<'a>) -> Option<Cow<'a, str>> {
    let inner = |members: &Members<'a>, name| Members::parse(members.present(name)?.get()).ok();
    inner(&inner(call, "extra_content")?, "google")?.present("thought_signature").and_then(text_of)
}

/// The text of a `thinking` part: a string, or parts of its own.
pub(super) fn thinking(value: &RawValue) -> Cow<'_, str> {
    if let Some(text) = said_in(value) {
        return text;
    }
    let parts = elements(value.get()).unwrap_or_default();
    let texts = parts.iter().filter_map(|part| Members::parse(part.get()).ok()?.present("text").and_then(said_in));
    Cow::Owned(texts.collect::<String>())
}

/// What the assistant thought, as it was told to the client: `reasoning_details` where there are any, for they alone
/// carry signatures, else the bare text.
fn reasoning<'a>(members: &Members<'a>) -> Vec<Block<'a>> {
    let details = members.present("reasoning_details").and_then(|value| elements(value.get()).ok());
    let blocks: Vec<_> = details.unwrap_or_default().into_iter().filter_map(reasoning_detail).collect();
    if !blocks.is_empty() {
        return blocks;
    }
    let text = ["reasoning_content", "reasoning"].iter().find_map(|name| text_of(members.present(name)?));
    let text = text.filter(|text| !text.is_empty());
    text.map(|text| Block::Reasoning { text, signature: None }).into_iter().collect()
}

/// One of `reasoning_details`. What bears no mark came by OpenRouter's API: signatures are Anthropic's there, and other
/// formats than its mean nothing outside of that API.
pub(super) fn reasoning_detail(detail: &RawValue) -> Option<Block<'_>> {
    let members = Members::parse(detail.get()).ok()?;
    let text = |name| members.present(name).and_then(said_in).filter(|text: &Cow<'_, str>| !text.is_empty());
    // A detail that names no format has this one.
    let is_anthropics = text("format").is_none_or(|format| format == "anthropic-claude-v1");
    let block = match text("type")?.as_ref() {
        "reasoning.encrypted" => {
            let data = text("data")?;
            // Of other formats the rest of the detail counts as much.
            let data = match is_anthropics {
                true => Signer::Anthropic.redacted(data),
                false => Signer::OpenRouter.redacted(Cow::Borrowed(detail.get())),
            };
            Block::RedactedReasoning { data }
        }
        "reasoning.summary" => Block::Reasoning { text: text("summary")?, signature: None },
        "reasoning.text" => {
            let signature = text("signature").filter(|_| is_anthropics);
            let signature = signature.map(|signature| Signer::Anthropic.signed(signature));
            Block::Reasoning { text: text("text").unwrap_or_default(), signature }
        }
        _ => return None,
    };
    let is_empty = matches!(&block, Block::Reasoning { text, signature: None } if text.is_empty());
    (!is_empty).then_some(block)
}
