//! A Responses request as a conversation, for providers that speak another dialect.
//!
//! What has no place there is listed by its path, unless its value asks for nothing. What would change the meaning if it
//! were left out (a file by its id, an item of a tool of the provider's own) is refused.

use std::borrow::Cow;

use super::items::{Sealed, thought_signature};
use super::request::{Input, Item, Kind, Part, ResponsesRequest, Said, flag, invalid, object};
use crate::dialect::openai::{RequestError, text_at};
use crate::hub::{
    Block, Conversation, Effort, Format, ImageSource, Reasoning, Role, Setting, SettingKind, drop_path, is_nothing,
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
                for (at, item) in items.iter().enumerate() {
                    read_item(&format!("input[{at}]"), item, &mut into)?;
                }
            }
        }
        if into.turns.is_empty() {
            return Err(invalid("input", "more than rules: somebody has to say something"));
        }
        super::tools::read(&self.tools, &self.members, &mut into)?;
        into.parallel_tools = flag(&self.members, "parallel_tool_calls")?;
        let mut dropped = std::mem::take(&mut into.dropped);
        into.format = self.format(&mut dropped)?;
        into.reasoning = self.effort(&mut dropped)?;
        for (name, kind) in SETTINGS {
            let Some(value) = self.members.present(name) else { continue };
            if value.get().parse::<f64>().is_err() {
                return Err(invalid(name, "a number"));
            }
            into.settings.push(Setting { kind, name, value });
        }
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
        let format = object("text.format", format, &["type", "name", "description", "schema", "strict"])?;
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
        for (name, value) in reasoning.iter() {
            // Whatever a model tells of its thoughts is told.
            if !matches!(name, "effort" | "summary" | "generate_summary") && !is_nothing(value) {
                drop_path(dropped, format!("reasoning.{name}"));
            }
        }
        let Some(effort) = reasoning.present("effort") else { return Ok(None) };
        let effort = match text_of(effort).as_deref() {
            Some("none") => Effort::None,
            Some("minimal") => Effort::Minimal,
            Some("low") => Effort::Low,
            Some("medium") => Effort::Medium,
            Some("high") => Effort::High,
            Some("xhigh" | "max") => Effort::Highest,
            _ => return Err(invalid("reasoning.effort", "none, minimal, low, medium, high or xhigh")),
        };
        Ok(Some(Reasoning { name: "reasoning.effort", effort: Some(effort), budget: None }))
    }
}

pub(super) fn required<'a>(path: &str, members: &Members<'a>, name: &str) -> Result<Cow<'a, str>, RequestError> {
    const MUST: &str = "a string that is not empty";
    let full = || format!("{path}.{name}");
    let text = members.present(name).map(|value| text_at(value, full, MUST)).transpose()?;
    text.filter(|text| !text.is_empty()).ok_or_else(|| invalid(full(), MUST))
}

fn read_item<'s>(path: &str, item: &'s Item<'_>, into: &mut Conversation<'s>) -> Result<(), RequestError> {
    let members = &item.members;
    match item.kind {
        Kind::Message => {
            let said = blocks(&format!("{path}.content"), &item.said)?;
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
                content: blocks(&format!("{path}.output"), &item.said)?,
                is_error: false,
                cache: None,
            };
            into.say(Role::User, [result]);
        }
        Kind::Reasoning => into.say(Role::Assistant, thought(item)),
        Kind::Call | Kind::Output | Kind::Other => {
            return Err(invalid(
                format!("{path}.type"),
                "message, function_call, function_call_output or reasoning: the provider of this model knows no other",
            ));
        }
    }
    Ok(())
}

/// What the assistant thought, with the seal that we gave it to carry.
fn thought<'s>(item: &'s Item<'_>) -> Option<Block<'s>> {
    let text = || match &item.said {
        Said::Parts(parts) if parts.len() > 1 => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
            Cow::Owned(texts.join("\n\n"))
        }
        said => said.text(),
    };
    match item.members.present("encrypted_content").and_then(text_of).map(Sealed::read) {
        Some(Sealed::Redacted(data)) => Some(Block::RedactedReasoning { data }),
        Some(Sealed::Signed(signature)) => Some(Block::Reasoning { text: text(), signature: Some(signature) }),
        // What another provider encrypted is of no use to this one.
        Some(Sealed::Foreign) | None => {
            Some(text()).filter(|text| !text.is_empty()).map(|text| Block::Reasoning { text, signature: None })
        }
    }
}

fn blocks<'s>(path: &str, said: &'s Said<'_>) -> Result<Vec<Block<'s>>, RequestError> {
    match said {
        Said::Nothing => Ok(Vec::new()),
        Said::Text(text) => Ok(vec![Block::Text { text: Cow::Borrowed(text), cache: None }]),
        Said::Parts(parts) => {
            parts.iter().enumerate().map(|(at, part)| block(&format!("{path}[{at}]"), part)).collect()
        }
    }
}

fn block<'s>(path: &str, part: &'s Part<'_>) -> Result<Block<'s>, RequestError> {
    let members = &part.members;
    if let Some(text) = &part.text {
        return Ok(Block::Text { text: Cow::Borrowed(text), cache: None });
    }
    match &*part.kind {
        "input_image" => {
            const MUST: &str = "a URL or base64 data: a file's id means nothing to the provider of this model";
            let field = || format!("{path}.image_url");
            let url = members.present("image_url").ok_or_else(|| invalid(field(), MUST))?;
            let source = ImageSource::of_url(text_at(url, field, MUST)?).ok_or_else(|| invalid(field(), MUST))?;
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
    let data = text_at(data, field, MUST)?;
    let (media_type, data) = if data.starts_with("data:") {
        match ImageSource::of_url(data) {
            Some(ImageSource::Base64 { media_type, data }) => (media_type, data),
            Some(ImageSource::Url(_)) | None => return Err(invalid(field(), MUST)),
        }
    } else {
        // The kind the API takes where nothing is said.
        (Cow::Borrowed("application/pdf"), data)
    };
    Ok(Block::Document { media_type, data, name: members.present("filename").and_then(text_of), cache: None })
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
