//! A Messages request as a conversation, for providers that speak another dialect.
//!
//! What has no place there is listed by its path. What would change the meaning if it were left out (a tool of
//! Anthropic's own, a file by its id) is refused.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::request::MessagesRequest;
use crate::dialect::fields::{invalid, object, required, settings};
use crate::dialect::openai::RequestError;
use crate::dialect::said::{Piece, Said};
use crate::hub::{
    Block, Conversation, Effort, Format, ImageSource, Reasoning, Role, SettingKind, Signer, Tool, ToolChoice,
    drop_path, is_nothing, list_rest,
};
use crate::json::{Members, elements, text_of};

/// The members that are read, and those that are the gateway's own business.
const PLACED: [&str; 14] = [
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
    "mcp_servers",
    "ragmux",
];

const SETTINGS: [(&str, SettingKind); 3] =
    [("temperature", SettingKind::Temperature), ("top_p", SettingKind::TopP), ("top_k", SettingKind::TopK)];

/// The members of a tool that are read.
const OF_TOOLS: [&str; 6] = ["type", "name", "description", "input_schema", "strict", "cache_control"];

impl MessagesRequest<'_> {
    /// The request as every dialect can say it. Texts of ours are not in it yet.
    ///
    /// # Errors
    /// What cannot be said in any other dialect, and what is not as the API wants it.
    pub(crate) fn conversation(&self) -> Result<Conversation<'_>, RequestError> {
        if self.members.present("thread").is_some() {
            // Only the provider that keeps it knows what was said before.
            return Err(invalid("thread", "left out for this model, whose provider keeps no conversations"));
        }
        let mut conversation = Conversation {
            output_limit: Some(self.max_tokens),
            stream: self.stream,
            user: self.user.clone(),
            ..Conversation::default()
        };
        let mut dropped = Vec::new();
        conversation.system = blocks("system", &self.system, &mut dropped)?;
        let mut called = HashSet::new();
        for (at, message) in self.messages.iter().enumerate() {
            let path = format!("messages[{at}]");
            list_rest(&path, &message.members, &["role", "content"], &mut dropped);
            let mut said = blocks(&format!("{path}.content"), &message.content, &mut dropped)?;
            sided(&path, &message.role, &mut said, &mut dropped)?;
            check_calls(&path, &message.content, &mut called)?;
            if said.is_empty() {
                drop_path(&mut dropped, path);
            }
            match &*message.role {
                "assistant" => conversation.say(Role::Assistant, said),
                "user" => conversation.say(Role::User, said),
                _ => conversation.system.extend(said),
            }
        }
        if conversation.system.iter().any(|block| !matches!(block, Block::Text { .. })) {
            return Err(invalid("system", "text"));
        }
        if conversation.turns.is_empty() {
            return Err(invalid("messages", "a conversation in which somebody says something"));
        }
        for (at, tool) in self.tools.iter().enumerate() {
            conversation.tools.push(read_tool(&format!("tools[{at}]"), tool, &mut dropped)?);
        }
        self.read_choice(&mut conversation, &mut dropped)?;
        if let Some(metadata) = self.metadata {
            list_rest("metadata", &object("metadata", metadata, &["user_id"])?, &["user_id"], &mut dropped);
        }
        self.read_output(&mut conversation, &mut dropped)?;
        if let Some(value) = self.members.present("stop_sequences") {
            let list = elements(value.get()).map_err(|_| invalid("stop_sequences", "an array"))?;
            let texts = list.into_iter().map(|text| text_of(text).ok_or_else(|| invalid("stop_sequences", "strings")));
            conversation.stop = texts.collect::<Result<_, _>>()?;
        }
        conversation.settings = settings(&self.members, &SETTINGS)?;
        if self.members.present("mcp_servers").is_some_and(|servers| !is_nothing(servers)) {
            return Err(invalid("mcp_servers", "absent: the provider of this model does not call servers of tools"));
        }
        for (name, value) in self.members.iter() {
            let is_placed = PLACED.contains(&name) || SETTINGS.iter().any(|(setting, _)| *setting == name);
            let is_usual = name == "service_tier" && value.get() == "\"auto\"";
            if !is_placed && !is_usual && !is_nothing(value) {
                drop_path(&mut dropped, name.to_owned());
            }
        }
        conversation.dropped = dropped;
        Ok(conversation)
    }

    fn read_choice<'s>(
        &'s self,
        into: &mut Conversation<'s>,
        dropped: &mut Vec<Cow<'_, str>>,
    ) -> Result<(), RequestError> {
        let Some(value) = self.members.present("tool_choice") else { return Ok(()) };
        let choice = object("tool_choice", value, &["type", "name", "disable_parallel_tool_use"])?;
        list_rest("tool_choice", &choice, &["type", "name", "disable_parallel_tool_use"], dropped);
        if into.tools.is_empty() {
            drop_path(dropped, "tool_choice".to_owned());
        }
        into.tool_choice = Some(match choice.present("type").and_then(text_of).as_deref() {
            Some("auto") => ToolChoice::Auto,
            Some("any") => ToolChoice::Required,
            Some("none") => ToolChoice::None,
            Some("tool") => ToolChoice::Named(required("tool_choice", &choice, "name")?),
            _ => return Err(invalid("tool_choice.type", "auto, any, tool or none")),
        });
        into.parallel_tools = match choice.present("disable_parallel_tool_use").map(RawValue::get) {
            Some("true") => Some(false),
            Some("false") => Some(true),
            _ => None,
        };
        Ok(())
    }

    /// Reads the form of the answer and how much thought goes into it.
    fn read_output<'s>(
        &'s self,
        into: &mut Conversation<'s>,
        dropped: &mut Vec<Cow<'_, str>>,
    ) -> Result<(), RequestError> {
        let config = match self.members.present("output_config") {
            Some(value) => Some(object("output_config", value, &["effort", "format"])?),
            None => None,
        };
        let of_config = |name| config.as_ref().and_then(|config| config.present(name));
        if let Some(config) = &config {
            list_rest("output_config", config, &["effort", "format"], dropped);
        }
        // The second was its name before the first.
        let formats =
            [("output_config.format", of_config("format")), ("output_format", self.members.present("output_format"))];
        if formats.iter().all(|(_, value)| value.is_some()) {
            drop_path(dropped, "output_format".to_owned());
        }
        if let Some((path, value)) = formats.into_iter().find_map(|(path, value)| Some((path, value?))) {
            let format = object(path, value, &["type", "schema"])?;
            list_rest(path, &format, &["type", "schema"], dropped);
            if format.present("type").and_then(text_of).as_deref() != Some("json_schema") {
                return Err(invalid(format!("{path}.type"), "json_schema"));
            }
            let schema = format.present("schema").ok_or_else(|| invalid(format!("{path}.schema"), "an object"))?;
            into.format = Some(Format::Schema { name: "answer".into(), description: None, schema, strict: Some(true) });
        }
        let effort = match of_config("effort").map(text_of) {
            None => None,
            Some(Some(word)) => Some(match &*word {
                "low" => Effort::Low,
                "medium" => Effort::Medium,
                "high" => Effort::High,
                "xhigh" | "max" => Effort::Highest,
                _ => return Err(invalid("output_config.effort", "low, medium, high, xhigh or max")),
            }),
            Some(None) => return Err(invalid("output_config.effort", "a string")),
        };
        let thinking = match self.members.present("thinking") {
            Some(value) => Some(object("thinking", value, &["type", "budget_tokens"])?),
            None => None,
        };
        let kind = thinking.as_ref().and_then(|thinking| thinking.present("type")).and_then(text_of);
        if let Some(thinking) = &thinking {
            let is_enabled = kind.as_deref() == Some("enabled");
            let placed = if is_enabled { &["type", "budget_tokens"][..] } else { &["type"] };
            list_rest("thinking", thinking, placed, dropped);
            // An effort says what an adaptive model goes by.
            let is_said = is_enabled || kind.as_deref() == Some("disabled") || effort.is_some();
            if !is_said {
                drop_path(dropped, "thinking".to_owned());
            }
        }
        into.reasoning = match kind.as_deref() {
            Some("enabled") => {
                let budget = thinking.as_ref().and_then(|thinking| thinking.present("budget_tokens"));
                let budget = budget.and_then(|value| value.get().parse().ok());
                let budget = budget.ok_or_else(|| invalid("thinking.budget_tokens", "a whole number"))?;
                Some(Reasoning { name: "thinking", effort, budget: Some(budget) })
            }
            // Models of other providers that cannot think refuse to be told not to.
            Some("disabled") => None,
            _ => effort.map(|effort| Reasoning { name: "output_config.effort", effort: Some(effort), budget: None }),
        };
        Ok(())
    }
}

/// Refuses the result of a call that nobody has made: other providers would not know what to do with it, each in its own
/// way. `called` has the ids of all calls until now.
fn check_calls<'s>(path: &str, said: &Said<'s>, called: &mut HashSet<Cow<'s, str>>) -> Result<(), RequestError> {
    let Said::Pieces(list) = said else { return Ok(()) };
    for (at, block) in list.iter().enumerate() {
        let id = |name| block.members.present(name).and_then(text_of);
        match &*block.kind {
            "tool_use" => called.extend(id("id")),
            "tool_result" if !id("tool_use_id").is_some_and(|id| called.contains(&id)) => {
                let field = format!("{path}.content[{at}].tool_use_id");
                return Err(invalid(field, "that of an earlier call of a tool"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses what the other side says: results of tools are the user's, calls the assistant's. Thoughts are the
/// assistant's too; those of others are no loss.
fn sided(
    path: &str,
    role: &str,
    said: &mut Vec<Block<'_>>,
    dropped: &mut Vec<Cow<'_, str>>,
) -> Result<(), RequestError> {
    let is_assistants = role == "assistant";
    let foreign = |block: &Block<'_>| match block {
        Block::ToolResult { .. } => is_assistants,
        Block::ToolCall { .. } => !is_assistants,
        _ => false,
    };
    if said.iter().any(foreign) {
        return Err(invalid(
            format!("{path}.content"),
            "said by the other side: calls of tools are the assistant's and their results the user's",
        ));
    }
    if role == "user" {
        let before = said.len();
        said.retain(|block| !matches!(block, Block::Reasoning { .. } | Block::RedactedReasoning { .. }));
        if said.len() < before {
            drop_path(dropped, format!("{path}.content"));
        }
    }
    Ok(())
}

fn read_tool<'s>(path: &str, tool: &Members<'s>, dropped: &mut Vec<Cow<'_, str>>) -> Result<Tool<'s>, RequestError> {
    if tool.present("type").is_some_and(|kind| text_of(kind).as_deref() != Some("custom")) {
        return Err(invalid(format!("{path}.type"), "custom: the provider of this model has no tools of Anthropic's"));
    }
    list_rest(path, tool, &OF_TOOLS, dropped);
    Ok(Tool {
        name: required(path, tool, "name")?,
        description: tool.present("description").and_then(text_of),
        parameters: tool.present("input_schema"),
        strict: tool.present("strict").map(|strict| strict.get() == "true"),
        cache: tool.present("cache_control"),
    })
}

fn blocks<'s>(path: &str, said: &'s Said<'_>, dropped: &mut Vec<Cow<'_, str>>) -> Result<Vec<Block<'s>>, RequestError> {
    match said {
        Said::Nothing => Ok(Vec::new()),
        Said::Text(text) if text.is_empty() => Ok(Vec::new()),
        Said::Text(text) => Ok(vec![Block::Text { text: Cow::Borrowed(text), cache: None }]),
        Said::Pieces(list) => {
            let mut blocks = Vec::with_capacity(list.len());
            for (at, block) in list.iter().enumerate() {
                read_block(&format!("{path}[{at}]"), block, &mut blocks, dropped)?;
            }
            Ok(blocks)
        }
    }
}

fn read_block<'s>(
    path: &str,
    block: &'s Piece<'_>,
    into: &mut Vec<Block<'s>>,
    dropped: &mut Vec<Cow<'_, str>>,
) -> Result<(), RequestError> {
    let members = &block.members;
    let cache = members.present("cache_control");
    let text = |name| members.present(name).and_then(text_of).filter(|text: &Cow<'_, str>| !text.is_empty());
    list_rest(path, members, placed_in(&block.kind), dropped);
    into.push(match &*block.kind {
        "text" if block.text.as_deref().is_none_or(str::is_empty) => return Ok(()),
        "text" => Block::Text { text: Cow::Borrowed(block.text.as_deref().unwrap_or_default()), cache },
        "image" => Block::Image { source: image(path, members, dropped)?, detail: None, cache },
        "document" => {
            let (media_type, data) = document(path, members, dropped)?;
            Block::Document { media_type, data, name: text("title"), cache }
        }
        // What bears no mark is of Anthropic's making.
        "thinking" => {
            let signature = text("signature").map(|signature| Signer::Anthropic.signed(signature));
            Block::Reasoning { text: text("thinking").unwrap_or_default(), signature }
        }
        "redacted_thinking" => {
            Block::RedactedReasoning { data: Signer::Anthropic.redacted(required(path, members, "data")?) }
        }
        "tool_use" => Block::ToolCall {
            id: required(path, members, "id")?,
            name: required(path, members, "name")?,
            arguments: Cow::Borrowed(members.present("input").map_or("{}", RawValue::get)),
            signature: None,
        },
        "tool_result" => Block::ToolResult {
            call_id: required(path, members, "tool_use_id")?,
            name: None,
            content: blocks(&format!("{path}.content"), &block.inner, dropped)?,
            is_error: members.present("is_error").is_some_and(|value| value.get() == "true"),
            cache,
        },
        _ => {
            return Err(invalid(
                format!("{path}.type"),
                "text, image, document, thinking, tool_use or tool_result: the provider of this model knows no other",
            ));
        }
    });
    Ok(())
}

/// The members of a kind of block that are read.
fn placed_in(kind: &str) -> &'static [&'static str] {
    match kind {
        "text" => &["type", "text", "cache_control"],
        "image" => &["type", "source", "cache_control"],
        "document" => &["type", "source", "title", "cache_control"],
        "thinking" => &["type", "thinking", "signature"],
        "redacted_thinking" => &["type", "data"],
        "tool_use" => &["type", "id", "name", "input"],
        _ => &["type", "tool_use_id", "content", "is_error", "cache_control"],
    }
}

fn source<'s>(path: &str, members: &Members<'s>) -> Result<(Cow<'s, str>, Members<'s>), RequestError> {
    let path = format!("{path}.source");
    let value = members.present("source").ok_or_else(|| invalid(path.as_str(), "an object"))?;
    let source = object(&path, value, &["type", "media_type", "data", "url"])?;
    Ok((required(&path, &source, "type")?, source))
}

fn image<'s>(
    path: &str,
    members: &Members<'s>,
    dropped: &mut Vec<Cow<'_, str>>,
) -> Result<ImageSource<'s>, RequestError> {
    let (kind, source) = source(path, members)?;
    let path = format!("{path}.source");
    let (image, placed) = match &*kind {
        "url" => (ImageSource::Url(required(&path, &source, "url")?), &["type", "url"][..]),
        "base64" => {
            let media_type = required(&path, &source, "media_type")?;
            let data = required(&path, &source, "data")?;
            (ImageSource::Base64 { media_type, data }, &["type", "media_type", "data"][..])
        }
        _ => return Err(invalid(format!("{path}.type"), "base64 or url: the provider of this model has not the file")),
    };
    if !image.is_plausible() {
        return Err(invalid(path, "an http or https URL, or an image in base64"));
    }
    list_rest(&path, &source, placed, dropped);
    Ok(image)
}

/// The media type of a document and its bytes in base64.
fn document<'s>(
    path: &str,
    members: &Members<'s>,
    dropped: &mut Vec<Cow<'_, str>>,
) -> Result<(Cow<'s, str>, Cow<'s, str>), RequestError> {
    let (kind, source) = source(path, members)?;
    let path = format!("{path}.source");
    list_rest(&path, &source, &["type", "media_type", "data"], dropped);
    match &*kind {
        "base64" => Ok((required(&path, &source, "media_type")?, required(&path, &source, "data")?)),
        "text" => {
            let data = STANDARD.encode(required(&path, &source, "data")?.as_bytes());
            Ok((Cow::Borrowed("text/plain"), Cow::Owned(data)))
        }
        _ => Err(invalid(format!("{path}.type"), "base64 or text: the provider of this model cannot fetch it")),
    }
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
