//! Tools of a request as a conversation has them.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::dialect::fields::{invalid, object, required};
use crate::dialect::openai::RequestError;
use crate::hub::{Conversation, Tool, ToolChoice, list_rest};
use crate::json::{Members, elements, text_of};

const OF_TOOLS: [&str; 5] = ["type", "name", "description", "parameters", "strict"];

/// Reads tools, and which of them the model has to call.
pub(super) fn read<'s>(
    tools: &[Members<'s>],
    request: &Members<'s>,
    into: &mut Conversation<'s>,
) -> Result<(), RequestError> {
    for (at, tool) in tools.iter().enumerate() {
        let path = format!("tools[{at}]");
        if tool.present("type").and_then(text_of).as_deref() != Some("function") {
            let must = "function: the provider of this model has no place for another kind";
            return Err(invalid(format!("{path}.type"), must));
        }
        let parameters = tool.present("parameters");
        if parameters.is_some_and(|schema| !schema.get().starts_with('{')) {
            return Err(invalid(format!("{path}.parameters"), "an object"));
        }
        list_rest(&path, tool, &OF_TOOLS, &mut into.dropped);
        into.tools.push(Tool {
            name: required(&path, tool, "name")?,
            description: tool.present("description").and_then(text_of),
            parameters,
            strict: tool.present("strict").map(|strict| strict.get() == "true"),
            cache: None,
        });
    }
    choice(request, into)
}

fn choice<'s>(request: &Members<'s>, into: &mut Conversation<'s>) -> Result<(), RequestError> {
    const MUST: &str = "none, auto, required or the name of a function";
    let Some(value) = request.present("tool_choice") else { return Ok(()) };
    let mode = |text: Option<Cow<'_, str>>| match text.as_deref() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some("required") => Ok(ToolChoice::Required),
        _ => Err(invalid("tool_choice", MUST)),
    };
    if value.get().starts_with('"') {
        into.tool_choice = Some(mode(text_of(value))?);
        return Ok(());
    }
    const OF_CHOICES: [&str; 4] = ["type", "name", "mode", "tools"];
    let members = object("tool_choice", value, &OF_CHOICES)?;
    list_rest("tool_choice", &members, &OF_CHOICES, &mut into.dropped);
    match members.present("type").and_then(text_of).as_deref() {
        Some("function") => {
            into.tool_choice = Some(ToolChoice::Named(required("tool_choice", &members, "name")?));
        }
        Some("allowed_tools") => {
            let tools = members.present("tools").and_then(|tools| elements(tools.get()).ok()).unwrap_or_default();
            let name = |tool: &'s serde_json::value::RawValue| {
                Members::parse(tool.get()).ok()?.present("name").and_then(text_of)
            };
            let names: HashSet<_> = tools.into_iter().filter_map(name).collect();
            into.tools.retain(|tool| names.contains(&tool.name));
            into.tool_choice = Some(mode(members.present("mode").and_then(text_of))?);
        }
        _ => return Err(invalid("tool_choice", MUST)),
    }
    Ok(())
}
