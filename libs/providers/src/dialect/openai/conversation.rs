//! A Chat request as a conversation, for providers that speak another dialect.
//!
//! What has no place there is listed by its path, unless its value asks for nothing. What would change the meaning if it
//! were left out (an audio part, a tool that is no function, a file by its id) is refused.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::value::RawValue;

use super::request::{ChatRequest, MAX_ITEMS, OUTPUT_FIELDS, RequestError, SERVER_OUTPUT_FIELDS};
use super::turns;
use crate::dialect::fields::{effort, invalid, object, required, settings};
use crate::hub::{
    Conversation, Effort, Format, Reasoning, SettingKind, Tool, ToolChoice, compact, drop_path, is_nothing, list_rest,
};
use crate::json::{Members, elements, text_of};

/// The members that are read, and those that are the gateway's own business.
const PLACED: [&str; 18] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "n",
    "tools",
    "functions",
    "tool_choice",
    "function_call",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "stop",
    "user",
    "safety_identifier",
    "ragmux",
];

const SETTINGS: [(&str, SettingKind); 6] = [
    ("temperature", SettingKind::Temperature),
    ("top_p", SettingKind::TopP),
    ("top_k", SettingKind::TopK),
    ("seed", SettingKind::Seed),
    ("frequency_penalty", SettingKind::FrequencyPenalty),
    ("presence_penalty", SettingKind::PresencePenalty),
];

/// Members of Ollama's own API (Ollama API, Generate a chat message), by which its clients steer it in this one too.
/// `num_ctx` is one of its `options`.
const EXTRAS: [&str; 3] = ["keep_alive", "options", "num_ctx"];

/// Values that ask for what happens anyway.
const AS_ALWAYS: [(&str, &[&str]); 3] =
    [("service_tier", &["\"auto\"", "\"default\""]), ("modalities", &["[\"text\"]"]), ("top_logprobs", &["0"])];

impl ChatRequest<'_> {
    /// The request as every dialect can say it. Texts of ours are not in it yet.
    ///
    /// # Errors
    /// What cannot be said in any other dialect, and what is not as the API wants it.
    pub(crate) fn conversation(&self) -> Result<Conversation<'_>, RequestError> {
        let mut conversation = Conversation {
            output_limit: self.output_limit,
            stream: self.stream,
            user: self.members.present("safety_identifier").and_then(text_of).or_else(|| self.user.clone()),
            ..Conversation::default()
        };
        turns::read(&self.messages, &mut conversation)?;
        self.read_tools(&mut conversation)?;
        conversation.format = match self.members.present("response_format") {
            Some(value) => format(value, &mut conversation.dropped)?,
            None => None,
        };
        conversation.reasoning = self.reasoning(&mut conversation.dropped)?;
        conversation.stop = self.stop.map(stop).transpose()?.unwrap_or_default();
        conversation.settings = settings(&self.members, &SETTINGS)?;
        let extra = |name| Some((name, self.members.present(name)?));
        conversation.extras = EXTRAS.into_iter().filter_map(extra).collect();
        self.list_dropped(&mut conversation.dropped);
        Ok(conversation)
    }

    /// Whether the client calls tools functions, as the API once did, and expects calls of them in that form.
    pub(crate) fn has_functions(&self) -> bool {
        self.tools.is_none() && self.members.present("functions").is_some()
    }

    fn list_dropped(&self, dropped: &mut Vec<Cow<'_, str>>) {
        let both = |name, other| self.members.present(name).is_some() && self.members.present(other).is_some();
        // Each of them is read where the other is not.
        for (name, other) in [
            ("functions", "tools"),
            ("function_call", "tool_choice"),
            ("user", "safety_identifier"),
            ("thinking", "reasoning"),
        ] {
            if both(name, other) {
                drop_path(dropped, name.to_owned());
            }
        }
        if self.n > 1 {
            drop_path(dropped, "n".to_owned());
        }
        for (name, value) in self.members.iter() {
            let placed = PLACED.contains(&name)
                || EXTRAS.contains(&name)
                || OUTPUT_FIELDS.contains(&name)
                || SERVER_OUTPUT_FIELDS.contains(&name)
                || SETTINGS.iter().any(|(setting, _)| *setting == name);
            let as_always =
                AS_ALWAYS.iter().any(|(field, values)| *field == name && values.contains(&&*compact(value)));
            // The one field that asks for something with a value of nothing.
            let asks = name == "web_search_options" && value.get() != "null";
            if !placed && !as_always && (asks || !is_nothing(value)) {
                drop_path(dropped, name.to_owned());
            }
        }
        let options = self.members.present("stream_options").and_then(|value| Members::parse(value.get()).ok());
        if let Some(options) = &options {
            list_rest("stream_options", options, &["include_usage"], dropped);
        }
    }

    fn read_tools<'s>(&'s self, into: &mut Conversation<'s>) -> Result<(), RequestError> {
        let list = |name: &'static str| -> Result<Vec<&'s RawValue>, RequestError> {
            let Some(value) = self.members.present(name) else { return Ok(Vec::new()) };
            let list = elements(value.get()).map_err(|_| invalid(name, "an array"))?;
            if list.len() > MAX_ITEMS { Err(invalid(name, "an array of at most 65536 tools")) } else { Ok(list) }
        };
        for (at, tool) in list("tools")?.into_iter().enumerate() {
            let path = format!("tools[{at}]");
            let members = object_at(&path, tool)?;
            let kind = members.present("type").and_then(text_of);
            let definition = members.present("function");
            let definition = match (kind.as_deref(), definition) {
                (Some("function") | None, Some(definition)) => definition,
                (Some("function") | None, None) => return Err(invalid(format!("{path}.function"), "an object")),
                (Some(_), _) => {
                    return Err(invalid(
                        format!("{path}.type"),
                        "function: the provider has no place for another kind",
                    ));
                }
            };
            list_rest(&path, &members, &["type", "function", "cache_control"], &mut into.dropped);
            let mut tool = self::tool(&format!("{path}.function"), definition, &mut into.dropped)?;
            tool.cache = members.present("cache_control").or(tool.cache);
            into.tools.push(tool);
        }
        if self.tools.is_none() {
            for (at, function) in list("functions")?.into_iter().enumerate() {
                let tool = tool(&format!("functions[{at}]"), function, &mut into.dropped)?;
                into.tools.push(tool);
            }
        }
        into.parallel_tools = match self.members.present("parallel_tool_calls").map(RawValue::get) {
            // The old form has room for one call only.
            _ if self.has_functions() => Some(false),
            None => None,
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(_) => return Err(invalid("parallel_tool_calls", "true or false")),
        };
        let (field, choice) = match self.members.present("tool_choice") {
            Some(choice) => ("tool_choice", Some(choice)),
            None => ("function_call", self.members.present("function_call")),
        };
        if let Some(choice) = choice {
            let has_tools = !into.tools.is_empty();
            read_choice(field, choice, into)?;
            if !has_tools && into.tool_choice != Some(ToolChoice::None) {
                drop_path(&mut into.dropped, field.to_owned());
            }
        }
        Ok(())
    }

    fn reasoning(&self, dropped: &mut Vec<Cow<'_, str>>) -> Result<Option<Reasoning>, RequestError> {
        let mut reasoning = None;
        if let Some(value) = self.members.present("thinking") {
            // As Anthropic and DeepSeek have it.
            let members = object_at("thinking", value)?;
            let budget = budget("thinking.budget_tokens", members.present("budget_tokens"))?;
            list_rest("thinking", &members, &["type", "budget_tokens"], dropped);
            let kind = members.present("type").and_then(text_of);
            if !matches!(kind.as_deref(), Some("enabled" | "disabled")) {
                drop_path(dropped, "thinking.type".to_owned());
            }
            let effort = match kind.as_deref() {
                Some("disabled") => Some(Effort::None),
                _ if budget.is_some() => None,
                _ => Some(Effort::Medium),
            };
            reasoning = Some(Reasoning { name: "thinking", effort, budget });
        }
        if let Some(value) = self.members.present("reasoning") {
            let members = object_at("reasoning", value)?;
            let budget = budget("reasoning.max_tokens", members.present("max_tokens"))?;
            let effort = match (members.present("effort"), members.present("enabled").map(RawValue::get)) {
                (Some(value), _) => Some(effort("reasoning.effort", value)?),
                (None, Some("false")) => Some(Effort::None),
                (None, Some("true")) if budget.is_none() => Some(Effort::Medium),
                (None, _) => None,
            };
            list_rest("reasoning", &members, &["effort", "max_tokens", "enabled"], dropped);
            if effort.is_some() || budget.is_some() {
                reasoning = Some(Reasoning { name: "reasoning", effort, budget });
            }
        }
        if let Some(value) = self.members.present("reasoning_effort") {
            let effort = Some(effort("reasoning_effort", value)?);
            let budget = reasoning.and_then(|reasoning| reasoning.budget);
            reasoning = Some(Reasoning { name: "reasoning_effort", effort, budget });
        }
        Ok(reasoning)
    }
}

fn tool<'s>(path: &str, definition: &'s RawValue, dropped: &mut Vec<Cow<'_, str>>) -> Result<Tool<'s>, RequestError> {
    let members = object_at(path, definition)?;
    list_rest(path, &members, &["name", "description", "parameters", "strict", "cache_control"], dropped);
    let parameters = members.present("parameters");
    if parameters.is_some_and(|schema| !schema.get().starts_with('{')) {
        return Err(invalid(format!("{path}.parameters"), "an object"));
    }
    Ok(Tool {
        name: required(path, &members, "name")?,
        description: members.present("description").and_then(text_of),
        parameters,
        strict: members.present("strict").map(|value| value.get() == "true"),
        cache: members.present("cache_control"),
    })
}

fn read_choice<'s>(field: &'static str, choice: &'s RawValue, into: &mut Conversation<'s>) -> Result<(), RequestError> {
    const MUST: &str = "none, auto, required or the name of a function";
    let mode = |text: &str| match text {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Err(invalid(field, MUST)),
    };
    if let Some(text) = text_of(choice) {
        into.tool_choice = Some(mode(&text)?);
        return Ok(());
    }
    let members = object_at(field, choice)?;
    list_rest(field, &members, &["type", "function", "allowed_tools", "name"], &mut into.dropped);
    let named = |members: &Members<'s>| members.present("name").and_then(text_of);
    let function = |members: &Members<'s>| named(&Members::parse(members.present("function")?.get()).ok()?);
    if let Some(allowed) = members.present("allowed_tools") {
        let allowed = object_at("tool_choice.allowed_tools", allowed)?;
        let tools = allowed.present("tools").and_then(|tools| elements(tools.get()).ok()).unwrap_or_default();
        let names: HashSet<_> =
            tools.into_iter().filter_map(|tool| function(&Members::parse(tool.get()).ok()?)).collect();
        into.tools.retain(|tool| names.contains(&tool.name));
        into.tool_choice = Some(mode(&required("tool_choice.allowed_tools", &allowed, "mode")?)?);
        return Ok(());
    }
    let name = function(&members).or_else(|| named(&members)).ok_or_else(|| invalid(field, MUST))?;
    into.tool_choice = Some(ToolChoice::Named(name));
    Ok(())
}

fn format<'s>(value: &'s RawValue, dropped: &mut Vec<Cow<'_, str>>) -> Result<Option<Format<'s>>, RequestError> {
    let members = object_at("response_format", value)?;
    list_rest("response_format", &members, &["type", "json_schema"], dropped);
    match required("response_format", &members, "type")?.as_ref() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::Json)),
        "json_schema" => {
            let field = "response_format.json_schema";
            let value = members.present("json_schema").ok_or_else(|| invalid(field, "an object"))?;
            let inner = object_at(field, value)?;
            list_rest(field, &inner, &["name", "description", "schema", "strict"], dropped);
            let schema = inner.present("schema").filter(|schema| schema.get().starts_with('{'));
            Ok(Some(Format::Schema {
                name: inner.present("name").and_then(text_of).unwrap_or(Cow::Borrowed("answer")),
                description: inner.present("description").and_then(text_of),
                schema: schema.ok_or_else(|| invalid("response_format.json_schema.schema", "an object"))?,
                strict: inner.present("strict").map(|value| value.get() == "true"),
            }))
        }
        _ => Err(invalid("response_format.type", "text, json_object or json_schema")),
    }
}

fn stop(value: &RawValue) -> Result<Vec<Cow<'_, str>>, RequestError> {
    const MUST: &str = "a string or an array of strings";
    if let Some(text) = text_of(value) {
        return Ok(vec![text]);
    }
    let list = elements(value.get()).map_err(|_| invalid("stop", MUST))?;
    list.into_iter().map(|value| text_of(value).ok_or_else(|| invalid("stop", MUST))).collect()
}

fn budget(field: &str, value: Option<&RawValue>) -> Result<Option<u64>, RequestError> {
    value.map(|value| value.get().parse().map_err(|_| invalid(field, "a whole number, zero or more"))).transpose()
}

/// An object in which no name occurs twice.
pub(super) fn object_at<'a>(path: &str, value: &'a RawValue) -> Result<Members<'a>, RequestError> {
    object(path, value, &[])
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
