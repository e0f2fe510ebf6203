//! A Responses request as a conversation, for providers that speak another dialect.
//!
//! What has no place there is listed by its path, unless its value asks for nothing. What would change the meaning if it
//! were left out (a file by its id, an item of a tool of the provider's own) is refused.

use std::borrow::Cow;
use std::collections::HashSet;

use super::items::Sealed;
use super::request::{Input, Item, Kind, ResponsesRequest};
use crate::dialect::fields::{self, invalid, object, required, settings, switch};
use crate::dialect::openai::{RequestError, text_at, thought_signature};
use crate::dialect::said::{Piece, Said};
use crate::hub::{
    Block, Conversation, Format, ImageSource, Reasoning, Role, SettingKind, drop_path, file_of, is_nothing, list_rest,
};
use crate::json::{Members, elements, text_of};

/// The members that are read, and those that are the gateway's own business.
const PLACED: [&str; 19] = [
    "model",
    "input",
    "instructions",
    "stream",
    "stream_options",
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
    "background",
    "ragmux",
    // Not for the provider but for what the answer tells of it.
    "top_logprobs",
];

const SETTINGS: [(&str, SettingKind); 2] = [("temperature", SettingKind::Temperature), ("top_p", SettingKind::TopP)];

/// Values that ask for what happens anyway.
const AS_ALWAYS: [(&str, &[&str]); 2] =
    [("service_tier", &["\"auto\"", "\"default\""]), ("truncation", &["\"disabled\""])];

/// The only thing to be included that other providers have.
const ENCRYPTED: &str = "reasoning.encrypted_content";

impl ResponsesRequest<'_> {
    /// The request as every dialect can say it. Texts of ours are not in it yet.
    ///
    /// # Errors
    /// What cannot be said in any other dialect, and what is not as the API wants it.
    pub(crate) fn conversation(&self) -> Result<Conversation<'_>, RequestError> {
        let mut into = Conversation {
            output_limit: self.max_output_tokens,
            stream: self.stream,
            user: self.user.clone(),
            ..Conversation::default()
        };
        if let Some(text) = self.instructions.as_deref().filter(|text| !text.is_empty()) {
            into.system.push(Block::Text { text: Cow::Borrowed(text), cache: None });
        }
        match &self.input {
            Input::Text(text) => into.say(Role::User, [Block::Text { text: Cow::Borrowed(text), cache: None }]),
            Input::Items(items) => {
                let mut called = HashSet::new();
                for (at, item) in items.iter().enumerate() {
                    let path = format!("input[{at}]");
                    read_item(&path, item, &mut into)?;
                    let call_id = item.members.present("call_id").and_then(text_of);
                    match item.kind {
                        Kind::Call => called.extend(call_id),
                        Kind::Output if !call_id.as_ref().is_some_and(|id| called.contains(id)) => {
                            return Err(invalid(format!("{path}.call_id"), "that of an earlier call of a tool"));
                        }
                        _ => {}
                    }
                }
            }
        }
        if into.turns.is_empty() {
            return Err(invalid("input", "more than rules: somebody has to say something"));
        }
        super::tools::read(&self.tools, &self.members, &mut into)?;
        into.parallel_tools = switch(&self.members, "parallel_tool_calls")?;
        let mut dropped = std::mem::take(&mut into.dropped);
        into.format = self.format(&mut dropped)?;
        into.reasoning = self.effort(&mut dropped)?;
        into.settings = settings(&self.members, &SETTINGS)?;
        self.list_dropped(&mut dropped)?;
        into.dropped = dropped;
        Ok(into)
    }

    fn list_dropped(&self, dropped: &mut Vec<Cow<'_, str>>) -> Result<(), RequestError> {
        for (name, value) in self.members.iter() {
            let placed = PLACED.contains(&name) || SETTINGS.iter().any(|(setting, _)| *setting == name);
            let as_always = AS_ALWAYS.iter().any(|(field, values)| *field == name && values.contains(&value.get()));
            if !placed && !as_always && !is_nothing(value) {
                drop_path(dropped, name.to_owned());
            }
        }
        if self.wants_store {
            drop_path(dropped, "store".to_owned());
        }
        if self.members.present("top_logprobs").is_some_and(|value| value.get() != "0") {
            drop_path(dropped, "top_logprobs".to_owned());
        }
        if let Some(value) = self.members.present("include") {
            const MUST: &str = "an array of strings";
            for word in elements(value.get()).map_err(|_| invalid("include", MUST))? {
                if text_of(word).ok_or_else(|| invalid("include", MUST))? != ENCRYPTED {
                    drop_path(dropped, "include".to_owned());
                }
            }
        }
        Ok(())
    }

    fn format(&self, dropped: &mut Vec<Cow<'_, str>>) -> Result<Option<Format<'_>>, RequestError> {
        let Some(value) = self.members.present("text") else { return Ok(None) };
        let text = object("text", value, &["format", "verbosity"])?;
        for (name, value) in text.iter() {
            let is_usual = name == "verbosity" && value.get() == "\"medium\"";
            if name != "format" && !is_usual && !is_nothing(value) {
                drop_path(dropped, format!("text.{name}"));
            }
        }
        let Some(format) = text.present("format") else { return Ok(None) };
        const OF_FORMATS: [&str; 5] = ["type", "name", "description", "schema", "strict"];
        let format = object("text.format", format, &OF_FORMATS)?;
        list_rest("text.format", &format, &OF_FORMATS, dropped);
        match format.present("type").and_then(text_of).as_deref() {
            Some("text") => Ok(None),
            Some("json_object") => Ok(Some(Format::Json)),
            Some("json_schema") => {
                let schema = format.present("schema").filter(|schema| schema.get().starts_with('{'));
                Ok(Some(Format::Schema {
                    name: format.present("name").and_then(text_of).unwrap_or(Cow::Borrowed("answer")),
                    description: format.present("description").and_then(text_of),
                    schema: schema.ok_or_else(|| invalid("text.format.schema", "an object"))?,
                    strict: format.present("strict").map(|strict| strict.get() == "true"),
                }))
            }
            _ => Err(invalid("text.format.type", "text, json_object or json_schema")),
        }
    }

    fn effort(&self, dropped: &mut Vec<Cow<'_, str>>) -> Result<Option<Reasoning>, RequestError> {
        let Some(value) = self.members.present("reasoning") else { return Ok(None) };
        let reasoning = object("reasoning", value, &["effort", "summary"])?;
        // Whatever a model tells of its thoughts is told.
        list_rest("reasoning", &reasoning, &["effort", "summary", "generate_summary"], dropped);
        let Some(effort) = reasoning.present("effort") else { return Ok(None) };
        let effort = fields::effort("reasoning.effort", effort)?;
        Ok(Some(Reasoning { name: "reasoning.effort", effort: Some(effort), budget: None }))
    }
}

fn read_item<'s>(path: &str, item: &'s Item<'_>, into: &mut Conversation<'s>) -> Result<(), RequestError> {
    let members = &item.members;
    list_rest(path, members, placed_in(item), &mut into.dropped);
    match item.kind {
        Kind::Message => {
            let said = blocks(&format!("{path}.content"), &item.said, &mut into.dropped)?;
            match &*item.role {
                "user" => into.say(Role::User, said),
                "assistant" => into.say(Role::Assistant, said),
                _ if said.iter().all(|block| matches!(block, Block::Text { .. })) => into.system.extend(said),
                _ => return Err(invalid(format!("{path}.content"), "text: rules are nothing else")),
            }
        }
        Kind::Call if item.name == "function_call" => {
            let call = Block::ToolCall {
                id: required(path, members, "call_id")?,
                name: required(path, members, "name")?,
                arguments: members.present("arguments").and_then(text_of).unwrap_or_default(),
                signature: thought_signature(members),
            };
            into.say(Role::Assistant, [call]);
        }
        Kind::Output if item.name == "function_call_output" => {
            if item.raw_said.is_none() {
                return Err(invalid(format!("{path}.output"), "a string or an array of parts"));
            }
            let result = Block::ToolResult {
                call_id: required(path, members, "call_id")?,
                name: None,
                content: blocks(&format!("{path}.output"), &item.said, &mut into.dropped)?,
                is_error: false,
                cache: None,
            };
            into.say(Role::User, [result]);
        }
        Kind::Reasoning => {
            let (thought, is_sealed) = thought(item);
            if is_sealed {
                drop_path(&mut into.dropped, format!("{path}.encrypted_content"));
            }
            into.say(Role::Assistant, thought);
        }
        Kind::Call | Kind::Output | Kind::Other => {
            return Err(invalid(
                format!("{path}.type"),
                "message, function_call, function_call_output or reasoning: the provider of this model knows no other",
            ));
        }
    }
    Ok(())
}

/// The members of an item that are read, or that say of an answer what needs no place. What is of another kind is
/// refused.
fn placed_in(item: &Item<'_>) -> &'static [&'static str] {
    match item.kind {
        Kind::Message => &["type", "id", "status", "role", "content"],
        Kind::Call if thought_signature(&item.members).is_some() => {
            &["type", "id", "status", "call_id", "name", "arguments", "extra_content"]
        }
        Kind::Call => &["type", "id", "status", "call_id", "name", "arguments"],
        Kind::Output => &["type", "id", "status", "call_id", "output"],
        // The thoughts themselves are left out where there is a summary of them.
        Kind::Reasoning if item.members.present("summary").is_none_or(is_nothing) => {
            &["type", "id", "status", "summary", "content", "encrypted_content"]
        }
        Kind::Reasoning => &["type", "id", "status", "summary", "encrypted_content"],
        Kind::Other => &[],
    }
}

/// What the assistant thought, with the seal that we gave it to carry, and whether it has one that is of no use: what
/// another provider encrypted.
fn thought<'s>(item: &'s Item<'_>) -> (Option<Block<'s>>, bool) {
    let text = || match &item.said {
        said @ Said::Pieces(_) => said.joined("\n\n"),
        said => said.text(),
    };
    let bare = || Some(text()).filter(|text| !text.is_empty()).map(|text| Block::Reasoning { text, signature: None });
    match item.members.present("encrypted_content").and_then(text_of).map(Sealed::read) {
        Some(Sealed::Redacted(data)) => (Some(Block::RedactedReasoning { data }), false),
        Some(Sealed::Signed(signature)) => (Some(Block::Reasoning { text: text(), signature: Some(signature) }), false),
        Some(Sealed::Foreign) => (bare(), true),
        None => (bare(), false),
    }
}

fn blocks<'s>(path: &str, said: &'s Said<'_>, dropped: &mut Vec<Cow<'_, str>>) -> Result<Vec<Block<'s>>, RequestError> {
    match said {
        Said::Nothing => Ok(Vec::new()),
        Said::Text(text) => Ok(vec![Block::Text { text: Cow::Borrowed(text), cache: None }]),
        Said::Pieces(parts) => {
            parts.iter().enumerate().map(|(at, part)| block(&format!("{path}[{at}]"), part, dropped)).collect()
        }
    }
}

fn block<'s>(path: &str, part: &'s Piece<'_>, dropped: &mut Vec<Cow<'_, str>>) -> Result<Block<'s>, RequestError> {
    let members = &part.members;
    let placed: &[&str] = match &*part.kind {
        "input_image" => &["type", "image_url", "detail"],
        "input_file" => &["type", "file_data", "filename"],
        "refusal" => &["type", "refusal"],
        _ => &["type", "text"],
    };
    list_rest(path, members, placed, dropped);
    if let Some(text) = &part.text {
        return Ok(Block::Text { text: Cow::Borrowed(text), cache: None });
    }
    match &*part.kind {
        "input_image" => {
            const THERE: &str = "a URL or base64 data: a file's id means nothing to the provider of this model";
            const MUST: &str = "an http or https URL; a data: URL must name its media type and be base64";
            let field = || format!("{path}.image_url");
            let url = text_at(members.present("image_url").ok_or_else(|| invalid(field(), THERE))?, field, THERE)?;
            let source = ImageSource::of_url(url).filter(ImageSource::is_plausible);
            let source = source.ok_or_else(|| invalid(field(), MUST))?;
            Ok(Block::Image { source, detail: members.present("detail").and_then(text_of), cache: None })
        }
        "input_file" => file(path, members),
        _ => Err(invalid(
            format!("{path}.type"),
            "input_text, input_image, input_file, output_text or refusal: the provider of this model knows no other",
        )),
    }
}

fn file<'s>(path: &str, members: &Members<'s>) -> Result<Block<'s>, RequestError> {
    const MUST: &str = "base64 data: the provider of this model can neither fetch files nor find them by their ids";
    let field = || format!("{path}.file_data");
    let data = members.present("file_data").ok_or_else(|| invalid(field(), MUST))?;
    let (media_type, data) = file_of(text_at(data, field, MUST)?).ok_or_else(|| invalid(field(), MUST))?;
    Ok(Block::Document { media_type, data, name: members.present("filename").and_then(text_of), cache: None })
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
