//! The body of a request, written from the form that all dialects have in common (Ollama API, Generate a chat message).

use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::IMAGE_TYPES;
use super::options::Options;
use super::thinking::{Said, Think, think};
use crate::dialect::openai::{Outgoing, RequestError};
use crate::hub::{
    Block, Conversation, Format, ImageSource, Lost, Role, ToolChoice, Turn, input_object, joined_text, leave_out,
    text_of_document,
};
use crate::images::ImageText;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    /// Streams are what happens where nothing is said.
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ToolOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<FormatOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Said>,
    #[serde(skip_serializing_if = "Options::is_empty")]
    options: Options<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_alive: Option<&'a RawValue>,
}

#[derive(Default, Serialize)]
struct Message<'a> {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<ImageText<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<&'a str>,
}

#[derive(Serialize)]
struct Call<'a> {
    function: CalledFunction<'a>,
}

#[derive(Serialize)]
struct CalledFunction<'a> {
    name: &'a str,
    arguments: Box<RawValue>,
}

#[derive(Serialize)]
struct ToolOut<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FormatOut<'a> {
    Json(&'static str),
    Schema(&'a RawValue),
}

/// Writes a request, and adds to `dropped` what the API has no place for.
///
/// # Errors
/// [`RequestError`] for a conversation in which nobody says anything, for an image that cannot be passed on, for a
/// document that is no text, and for the result of a tool that nobody called.
pub(crate) fn body(
    conversation: &Conversation<'_>,
    outgoing: &Outgoing<'_>,
    dropped: &mut Vec<Lost>,
) -> Result<Vec<u8>, RequestError> {
    let tool_names = conversation.tool_names();
    let mut writing = Writing { conversation, outgoing, tool_names, dropped };
    let mut messages = Vec::with_capacity(conversation.turns.len() + 1);
    for turn in &conversation.turns {
        match turn.role {
            Role::User => writing.user(turn, &mut messages)?,
            Role::Assistant => messages.extend(writing.assistant(turn)?),
        }
    }
    if messages.is_empty() {
        return Err(invalid("a conversation with something said by the user"));
    }
    let rules = writing.message("system", conversation.system.iter())?;
    messages.splice(..0, rules);
    let think = match conversation.reasoning.map(|reasoning| (reasoning, think(reasoning, outgoing.model))) {
        Some((_, Think::Said(said))) => Some(said),
        Some((reasoning, Think::Unable)) => {
            writing.drop(Lost::Setting(reasoning.name));
            None
        }
        Some((_, Think::Unasked)) | None => None,
    };
    let body = Body {
        model: outgoing.model,
        messages,
        stream: conversation.stream,
        tools: writing.tools(),
        format: conversation.format.as_ref().map(|format| match format {
            Format::Json => FormatOut::Json("json"),
            Format::Schema { schema, .. } => FormatOut::Schema(schema),
        }),
        think,
        options: Options::of(conversation, outgoing)?,
        keep_alive: conversation.extras.iter().find(|(name, _)| *name == "keep_alive").map(|(_, value)| *value),
    };
    if conversation.user.is_some() {
        writing.drop(Lost::User);
    }
    serde_json::to_vec(&body).map_err(|error| RequestError::Malformed(error.to_string()))
}

fn invalid(must: &'static str) -> RequestError {
    RequestError::Invalid { field: "messages".to_owned(), must }
}

struct Writing<'a, 'b> {
    conversation: &'a Conversation<'b>,
    outgoing: &'a Outgoing<'a>,
    /// By the ids of their calls.
    tool_names: HashMap<&'a str, &'a str>,
    dropped: &'a mut Vec<Lost>,
}

impl<'a> Writing<'a, '_> {
    fn drop(&mut self, lost: Lost) {
        leave_out(self.dropped, lost);
    }

    /// Results first, each a message of its own. They hold text only; their images go with what the user says next.
    fn user(&mut self, turn: &'a Turn<'_>, messages: &mut Vec<Message<'a>>) -> Result<(), RequestError> {
        let mut moved = Vec::new();
        for block in &turn.blocks {
            let Block::ToolResult { call_id, name, content, is_error, cache } = block else { continue };
            let name = name.as_deref().or_else(|| self.tool_names.get(call_id.as_ref()).copied());
            let name = name.ok_or_else(|| invalid("free of results of tools that were not called before"))?;
            if *is_error {
                self.drop(Lost::Failure);
            }
            if cache.is_some() {
                self.drop(Lost::CacheMark);
            }
            moved.extend(content.iter().filter(|block| !matches!(block, Block::Text { .. })));
            let content = joined_text(content);
            messages.push(Message { role: "tool", content, tool_name: Some(name), ..Message::default() });
        }
        let said = turn.blocks.iter().filter(|block| !matches!(block, Block::ToolResult { .. }));
        messages.extend(self.message("user", moved.into_iter().chain(said))?);
        Ok(())
    }

    fn assistant(&mut self, turn: &'a Turn<'_>) -> Result<Option<Message<'a>>, RequestError> {
        let mut said = Vec::new();
        let (mut tool_calls, mut thinking) = (Vec::new(), String::new());
        for block in &turn.blocks {
            match block {
                Block::ToolCall { name, arguments, .. } => {
                    let function = CalledFunction { name, arguments: input_object(arguments) };
                    tool_calls.push(Call { function });
                }
                Block::Reasoning { text, signature } => {
                    if signature.is_some() {
                        self.drop(Lost::Signature);
                    }
                    thinking.push_str(text);
                }
                Block::RedactedReasoning { .. } => self.drop(Lost::Redacted),
                block => said.push(block),
            }
        }
        let message = self.message("assistant", said.into_iter())?;
        if tool_calls.is_empty() {
            return Ok(message.map(|message| Message { thinking, ..message }));
        }
        let message = message.unwrap_or_else(|| Message { role: "assistant", ..Message::default() });
        Ok(Some(Message { thinking, tool_calls, ..message }))
    }

    /// A message of texts and images; `None` where there is neither.
    fn message<'c: 'a>(
        &mut self,
        role: &'static str,
        blocks: impl Iterator<Item = &'a Block<'c>>,
    ) -> Result<Option<Message<'a>>, RequestError> {
        let mut message = Message { role, ..Message::default() };
        let add = |text: &str, message: &mut Message<'_>| {
            if !message.content.is_empty() && !text.is_empty() {
                message.content.push_str("\n\n");
            }
            message.content.push_str(text);
        };
        for block in blocks {
            match block {
                Block::Text { text, cache } => {
                    if cache.is_some() {
                        self.drop(Lost::CacheMark);
                    }
                    add(text, &mut message);
                }
                Block::Image { source, detail, cache } => {
                    if cache.is_some() {
                        self.drop(Lost::CacheMark);
                    }
                    if detail.as_deref().is_some_and(|detail| detail != "auto") {
                        self.drop(Lost::Detail);
                    }
                    message.images.push(self.image(source)?);
                }
                // Others the models cannot read.
                Block::Document { media_type, data, .. } => {
                    let text = text_of_document(media_type, data);
                    let must = "free of files other than plain text, which the provider cannot read";
                    add(&text.ok_or_else(|| invalid(must))?, &mut message);
                }
                Block::Reasoning { .. }
                | Block::RedactedReasoning { .. }
                | Block::ToolCall { .. }
                | Block::ToolResult { .. } => {}
            }
        }
        let is_something = !message.content.is_empty() || !message.images.is_empty();
        Ok(is_something.then_some(message))
    }

    fn image(&self, source: &'a ImageSource<'_>) -> Result<ImageText<'a>, RequestError> {
        const READABLE: &str = "free of images other than PNG, JPEG, GIF and WebP";
        let image = source.inline(self.outgoing.images, IMAGE_TYPES);
        image.map(|(_, data)| data).ok_or_else(|| invalid(READABLE))
    }

    fn tools(&mut self) -> Vec<ToolOut<'a>> {
        let conversation = self.conversation;
        if conversation.tools.is_empty() {
            return Vec::new();
        }
        match &conversation.tool_choice {
            // A model that does not know of tools calls none.
            Some(ToolChoice::None) => return Vec::new(),
            Some(ToolChoice::Required | ToolChoice::Named(_)) => self.drop(Lost::ToolChoice),
            Some(ToolChoice::Auto) | None => {}
        }
        if conversation.parallel_tools == Some(false) {
            self.drop(Lost::OneAtATime);
        }
        if conversation.tools.iter().any(|tool| tool.strict == Some(true)) {
            self.drop(Lost::Strict);
        }
        if conversation.tools.iter().any(|tool| tool.cache.is_some()) {
            self.drop(Lost::CacheMark);
        }
        let function = |tool: &'a crate::hub::Tool<'_>| Function {
            name: &tool.name,
            description: tool.description.as_deref(),
            parameters: tool.parameters,
        };
        conversation.tools.iter().map(|tool| ToolOut { r#type: "function", function: function(tool) }).collect()
    }
}
