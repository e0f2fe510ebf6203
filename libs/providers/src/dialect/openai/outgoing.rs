//! A conversation as a Chat request, for clients of other dialects.

use std::borrow::Cow;

use domain::{OutputField, ProviderType};
use serde_json::json;
use serde_json::value::RawValue;

use super::assemble::Outgoing;
use super::form::{Body, Content, File, FormatOut, Function, ImageUrl, Message, Part, Schema, ToolOut};
use super::models::Model;
use super::quirks::{Quirks, Thinking, Thoughts, word};
use super::request::RequestError;
use super::settings::{is_usual, name_of};
use super::strict_schema::is_strict;
use crate::hub::{
    Block, Conversation, Effort, FittedIds, Format, ImageSource, Lost, Reasoning, Role, Signer, Tool, ToolChoice,
    in_words, leave_out, short_user, text_of_document,
};

/// The form of what Anthropic's models sign, the only signatures that are known here (OpenRouter, Reasoning tokens, Reasoning
/// details API shape, `format`).
const SIGNED_FORMAT: &str = "anthropic-claude-v1";

/// Writes a request, and adds to `dropped` what the API has no place for.
///
/// # Errors
/// [`RequestError`] for a file that the provider cannot read, and for what has no form as JSON.
pub(crate) fn body(
    conversation: &Conversation<'_>,
    provider: ProviderType,
    outgoing: &Outgoing<'_>,
    dropped: &mut Vec<Lost>,
) -> Result<Vec<u8>, RequestError> {
    let quirks = Quirks::of(provider);
    let ids = conversation.fitted_ids(quirks.call_ids);
    let model = Model::of(provider, outgoing.model);
    let mut writing = Writing {
        quirks,
        name: outgoing.model,
        model,
        effort: None,
        signer: quirks.signer(outgoing.model),
        ids,
        dropped,
    };
    let mut body = Body(String::new());
    body.put("model", outgoing.model)?;
    body.put("messages", &writing.messages(conversation)?)?;
    if conversation.stream {
        body.put("stream", &true)?;
        if writing.quirks.stream_options {
            body.put("stream_options", &json!({ "include_usage": true }))?;
        }
    }
    let bound = outgoing.output_bound;
    if let Some(limit) = conversation.output_within(bound.map(|bound| bound.tokens)) {
        let limit = limit.min(model.most_output.unwrap_or(u64::MAX));
        let field = bound.map(|bound| bound.field).or_else(|| provider.output_field().member());
        body.put(field.unwrap_or(OutputField::MaxTokens.as_str()), &limit)?;
    }
    writing.tools(conversation, &mut body)?;
    writing.format(conversation.format.as_ref(), &mut body)?;
    if let Some(reasoning) = conversation.reasoning {
        writing.reasoning(reasoning, &mut body)?;
    }
    let stops: Vec<&str> = conversation.stop.iter().map(AsRef::as_ref).filter(|stop| !stop.is_empty()).collect();
    let most = if model.stops { writing.quirks.stops } else { 0 };
    let kept = stops.get(..most).unwrap_or(&stops);
    if !kept.is_empty() {
        body.put("stop", kept)?;
    }
    if kept.len() < conversation.stop.len() {
        writing.drop(Lost::Stop);
    }
    for setting in &conversation.settings {
        match name_of(setting, quirks, model, writing.effort) {
            Some(name) => body.put(name, setting.value)?,
            None if is_usual(setting) => {}
            None => writing.drop(Lost::Setting(setting.name)),
        }
    }
    if let Some(user) = conversation.user.as_deref() {
        match writing.quirks.user {
            Some(most) => body.put("user", &short_user(user, most))?,
            None => writing.drop(Lost::User),
        }
    }
    body.0.push('}');
    Ok(body.0.into_bytes())
}

struct Writing<'d> {
    /// What stands for ids of calls that the provider does not take.
    ids: FittedIds<'d>,
    quirks: Quirks,
    /// The model's name.
    name: &'d str,
    model: Model,
    /// The effort that it is told.
    effort: Option<Effort>,
    /// Whose signatures the model takes.
    signer: Option<Signer>,
    dropped: &'d mut Vec<Lost>,
}

impl Writing<'_> {
    fn drop(&mut self, lost: Lost) {
        leave_out(self.dropped, lost);
    }

    /// A signature without its mark, where it is of use to the model.
    fn signature<'a>(&mut self, signature: Option<&'a str>) -> Option<&'a str> {
        let own = self.signer.and_then(|signer| signer.own(signature?));
        if own.is_none() && signature.is_some() {
            self.drop(Lost::Signature);
        }
        own
    }

    fn messages<'a, 'b: 'a>(&mut self, conversation: &'a Conversation<'b>) -> Result<Vec<Message<'a>>, RequestError> {
        let mut messages = Vec::with_capacity(conversation.turns.len() + 1);
        let mut rules = self.content(conversation.system.iter())?;
        if let Some(words) = self.form_in_words(conversation) {
            rules = Some(match rules {
                None => Content::Text(words),
                Some(Content::Text(text)) => Content::Text(format!("{text}\n\n{words}")),
                Some(Content::Parts(mut parts)) => {
                    parts.push(Part::Text { text: words.into(), cache_control: None });
                    Content::Parts(parts)
                }
            });
        }
        if rules.is_some() {
            messages.push(Message { role: "system", content: rules, ..Message::default() });
        }
        // What one side says goes on where nothing is left of what the other said between, such as thoughts.
        let mut turns: Vec<(Role, Vec<&'a Block<'b>>)> = Vec::with_capacity(conversation.turns.len());
        for turn in &conversation.turns {
            if !turn.blocks.iter().any(says_something) {
                for block in &turn.blocks {
                    match block {
                        Block::Reasoning { .. } => self.drop(Lost::Thought),
                        Block::RedactedReasoning { .. } => self.drop(Lost::Redacted),
                        _ => {}
                    }
                }
                continue;
            }
            match turns.last_mut().filter(|(role, _)| *role == turn.role) {
                Some((_, blocks)) => blocks.extend(&turn.blocks),
                None => turns.push((turn.role, turn.blocks.iter().collect())),
            }
        }
        if turns.is_empty() {
            return Err(RequestError::Invalid {
                field: "messages".to_owned(),
                must: "a conversation in which somebody says something",
            });
        }
        for (role, blocks) in turns {
            match role {
                Role::User => self.user(&blocks, &mut messages)?,
                Role::Assistant => self.assistant(&blocks, &mut messages)?,
            }
        }
        if let Some(last) = messages.last_mut().filter(|last| last.role == "assistant" && last.tool_calls.is_empty()) {
            last.prefix = self.quirks.marks_prefix;
        }
        Ok(messages)
    }

    /// What the model is told of the form of its answer where it cannot be held to a schema. DeepSeek refuses to be held to
    /// JSON where nothing said has the word (DeepSeek API, JSON output).
    fn form_in_words(&self, conversation: &Conversation<'_>) -> Option<String> {
        let format = conversation.format.as_ref().filter(|_| !self.quirks.schema)?;
        let has_word = |block: &Block<'_>| match block {
            Block::Text { text, .. } => text.as_bytes().windows(4).any(|word| word.eq_ignore_ascii_case(b"json")),
            _ => false,
        };
        let mut blocks = conversation.system.iter().chain(conversation.turns.iter().flat_map(|turn| &turn.blocks));
        let is_said = matches!(format, Format::Json) && blocks.any(has_word);
        (!is_said).then(|| in_words(format))
    }

    /// Results first, each a message of its own behind its call. Such messages hold text only, so their images and files
    /// go to the front of what the user says next.
    fn user<'a, 'b: 'a>(
        &mut self,
        blocks: &[&'a Block<'b>],
        messages: &mut Vec<Message<'a>>,
    ) -> Result<(), RequestError> {
        let mut moved = Vec::new();
        for block in blocks.iter().copied() {
            let Block::ToolResult { call_id, content, is_error, cache, .. } = block else { continue };
            if *is_error {
                self.drop(Lost::Failure);
            }
            if cache.is_some() {
                self.drop(Lost::CacheMark);
            }
            let (texts, others): (Vec<_>, Vec<_>) =
                content.iter().partition(|block| matches!(block, Block::Text { .. }));
            let mut text = joined(texts.into_iter());
            if text.is_empty() && !others.is_empty() {
                // Not every server takes an empty result.
                text = "The result is in the next message.".to_owned();
            }
            moved.extend(others);
            messages.push(Message {
                role: "tool",
                content: Some(Content::Text(text)),
                tool_call_id: Some(self.ids.fit(call_id)),
                ..Message::default()
            });
        }
        let said = blocks.iter().copied().filter(|block| !matches!(block, Block::ToolResult { .. }));
        if let Some(content) = self.content(moved.into_iter().chain(said))? {
            let follows_result = messages.last().is_some_and(|last| last.role == "tool");
            if self.quirks.speaks_after_results && follows_result {
                let content = Some(Content::Text("I have the results.".to_owned()));
                messages.push(Message { role: "assistant", content, ..Message::default() });
            }
            messages.push(Message { role: "user", content: Some(content), ..Message::default() });
        }
        Ok(())
    }

    fn assistant<'a, 'b: 'a>(
        &mut self,
        blocks: &[&'a Block<'b>],
        messages: &mut Vec<Message<'a>>,
    ) -> Result<(), RequestError> {
        let mut message = Message { role: "assistant", ..Message::default() };
        let mut thoughts = String::new();
        let mut said = Vec::new();
        for block in blocks.iter().copied() {
            match block {
                Block::ToolCall { id, name, arguments, .. } => {
                    let arguments = if arguments.is_empty() { "{}" } else { arguments };
                    message.tool_calls.push(json!({
                        "id": self.ids.fit(id), "type": "function", "function": { "name": name, "arguments": arguments }
                    }));
                }
                Block::Reasoning { text, signature } => match self.quirks.thoughts {
                    Thoughts::OfCalls => {
                        self.signature(signature.as_deref());
                        thoughts.push_str(text);
                    }
                    Thoughts::Details => {
                        let signature = self.signature(signature.as_deref());
                        let index = message.reasoning_details.len();
                        let mut detail = json!({ "type": "reasoning.text", "text": text, "index": index });
                        if let (Some(signature), Some(members)) = (signature, detail.as_object_mut()) {
                            members.insert("signature".to_owned(), signature.into());
                            members.insert("format".to_owned(), SIGNED_FORMAT.into());
                        }
                        if !text.is_empty() || signature.is_some() {
                            message.reasoning_details.push(detail);
                        }
                    }
                    Thoughts::None => self.drop(Lost::Thought),
                },
                Block::RedactedReasoning { data } => match self.signer.and_then(|signer| signer.own(data)) {
                    Some(data) => {
                        let index = message.reasoning_details.len();
                        message.reasoning_details.push(json!({
                            "type": "reasoning.encrypted", "data": data, "format": SIGNED_FORMAT, "index": index
                        }));
                    }
                    None => match self.quirks.detail(self.name, data) {
                        Some(detail) => message.reasoning_details.push(detail),
                        None => self.drop(Lost::Redacted),
                    },
                },
                Block::Text { .. } | Block::Image { .. } | Block::Document { .. } | Block::ToolResult { .. } => {
                    said.push(block);
                }
            }
        }
        if !message.tool_calls.is_empty() && !thoughts.is_empty() {
            message.reasoning_content = Some(thoughts);
        }
        message.content = self.content(said.into_iter())?;
        if message.content.is_some() || !message.tool_calls.is_empty() {
            messages.push(message);
        }
        Ok(())
    }

    /// One text where texts are all there is, which every server takes; parts where they are needed.
    fn content<'a, 'b: 'a>(
        &mut self,
        blocks: impl Iterator<Item = &'a Block<'b>> + Clone,
    ) -> Result<Option<Content<'a>>, RequestError> {
        let is_text = |block: &Block<'_>| match block {
            Block::Text { cache, .. } => cache.is_none() || !self.quirks.cache_marks,
            _ => false,
        };
        if blocks.clone().all(is_text) {
            if blocks.clone().any(|block| matches!(block, Block::Text { cache: Some(_), .. })) {
                self.drop(Lost::CacheMark);
            }
            let text = joined(blocks);
            return Ok((!text.is_empty()).then_some(Content::Text(text)));
        }
        let mut parts = Vec::new();
        for block in blocks {
            parts.extend(self.part(block)?);
        }
        Ok((!parts.is_empty()).then_some(Content::Parts(parts)))
    }

    fn part<'a>(&mut self, block: &'a Block<'_>) -> Result<Option<Part<'a>>, RequestError> {
        Ok(match block {
            // Some servers refuse texts of nothing.
            Block::Text { text, .. } if text.is_empty() => None,
            Block::Text { text, cache } => {
                Some(Part::Text { text: Cow::Borrowed(text), cache_control: self.mark(*cache) })
            }
            Block::Image { source, detail, cache } => {
                let url = match source {
                    ImageSource::Url(url) => Cow::Borrowed(url.as_ref()),
                    ImageSource::Base64 { media_type, data } => Cow::Owned(format!("data:{media_type};base64,{data}")),
                };
                let image_url = ImageUrl { url, detail: detail.as_deref() };
                Some(Part::ImageUrl { image_url, cache_control: self.mark(*cache) })
            }
            Block::Document { media_type, data, name, cache } => {
                let cache_control = self.mark(*cache);
                if let Some(text) = text_of_document(media_type, data) {
                    let text = name.as_deref().map_or(text.clone(), |name| format!("{name}:\n\n{text}"));
                    return Ok(Some(Part::Text { text: Cow::Owned(text), cache_control }));
                }
                if !self.quirks.files {
                    return Err(RequestError::Invalid {
                        field: "messages".to_owned(),
                        must: "a conversation without files other than text: the model's provider has no place for them",
                    });
                }
                if cache_control.is_some() {
                    self.drop(Lost::CacheMark);
                }
                let filename = name.as_deref().unwrap_or("document.pdf");
                Some(Part::File { file: File { filename, file_data: format!("data:{media_type};base64,{data}") } })
            }
            // Not of what is said in such a message.
            Block::Reasoning { .. }
            | Block::RedactedReasoning { .. }
            | Block::ToolCall { .. }
            | Block::ToolResult { .. } => None,
        })
    }

    fn mark<'a>(&mut self, cache: Option<&'a RawValue>) -> Option<&'a RawValue> {
        if cache.is_some() && !self.quirks.cache_marks {
            self.drop(Lost::CacheMark);
            return None;
        }
        cache
    }

    fn tools(&mut self, conversation: &Conversation<'_>, body: &mut Body) -> Result<(), RequestError> {
        if conversation.tools.is_empty() {
            return Ok(());
        }
        let mut tools = Vec::with_capacity(conversation.tools.len());
        for Tool { name, description, parameters, strict, cache } in &conversation.tools {
            let strict = self.strictly(*strict, *parameters, Lost::Strict);
            let function = Function { name, description: description.as_deref(), parameters: *parameters, strict };
            tools.push(ToolOut { r#type: "function", function, cache_control: self.mark(*cache) });
        }
        body.put("tools", &tools)?;
        match &conversation.tool_choice {
            None => {}
            Some(ToolChoice::Auto) => body.put("tool_choice", "auto")?,
            Some(ToolChoice::None) => body.put("tool_choice", "none")?,
            Some(ToolChoice::Required) => body.put("tool_choice", "required")?,
            Some(ToolChoice::Named(name)) => {
                body.put("tool_choice", &json!({ "type": "function", "function": { "name": name } }))?;
            }
        }
        match conversation.parallel_tools {
            Some(parallel) => body.put("parallel_tool_calls", &parallel),
            None => Ok(()),
        }
    }

    /// Whether what the model writes is held strictly to a schema, which the API refuses with one that leaves something
    /// open. Other providers' schemas may, and a server of somebody's own may take any.
    fn strictly(&mut self, strict: Option<bool>, schema: Option<&RawValue>, lost: Lost) -> Option<bool> {
        let is_refused = strict == Some(true) && !self.quirks.open_schemas && !schema.is_some_and(is_strict);
        if is_refused {
            self.drop(lost);
            return Some(false);
        }
        strict
    }

    fn format(&mut self, format: Option<&Format<'_>>, body: &mut Body) -> Result<(), RequestError> {
        let format = match format {
            None => return Ok(()),
            Some(Format::Json) => FormatOut::JsonObject,
            Some(Format::Schema { .. }) if !self.quirks.schema => {
                self.drop(Lost::Schema);
                FormatOut::JsonObject
            }
            Some(Format::Schema { name, description, schema, strict }) => {
                let strict = self.strictly(*strict, Some(schema), Lost::BesideSchema("strict"));
                let description = description.as_deref();
                FormatOut::JsonSchema { json_schema: Schema { name, description, schema, strict } }
            }
        };
        body.put("response_format", &format)
    }

    fn reasoning(&mut self, reasoning: Reasoning, body: &mut Body) -> Result<(), RequestError> {
        let Some(effort) = reasoning.as_effort() else { return Ok(()) };
        if reasoning.effort.is_some() && reasoning.budget.is_some() {
            self.drop(Lost::Budget);
        }
        match self.quirks.thinking {
            Thinking::Effort => match effort.nearest(self.model.efforts) {
                Some(effort) => {
                    self.effort = Some(effort);
                    body.put("reasoning_effort", word(effort))
                }
                None => {
                    self.drop(Lost::Setting(reasoning.name));
                    Ok(())
                }
            },
            Thinking::Object => match reasoning.budget {
                Some(budget) if reasoning.effort.is_none() => body.put("reasoning", &json!({ "max_tokens": budget })),
                Some(_) | None => body.put("reasoning", &json!({ "effort": word(effort) })),
            },
            Thinking::Switch if effort == Effort::None => body.put("thinking", &json!({ "type": "disabled" })),
            Thinking::Switch => {
                body.put("thinking", &json!({ "type": "enabled" }))?;
                body.put("reasoning_effort", if effort == Effort::Highest { "max" } else { word(effort) })
            }
            Thinking::None => {
                self.drop(Lost::Setting(reasoning.name));
                Ok(())
            }
        }
    }
}

/// The end of the conversation that the model goes on with and that the provider says again before it; `None` where there
/// is no such thing.
pub(crate) fn prefix_of(conversation: &Conversation<'_>, provider: ProviderType) -> Option<String> {
    let last = conversation.turns.last().filter(|turn| turn.role == Role::Assistant)?;
    let is_call = |block: &Block<'_>| matches!(block, Block::ToolCall { .. });
    if !Quirks::of(provider).marks_prefix || last.blocks.iter().any(is_call) {
        return None;
    }
    Some(joined(last.blocks.iter())).filter(|prefix| !prefix.is_empty())
}

/// Whether a block comes to something in a Chat request on its own: thoughts go with what was said after them.
fn says_something(block: &Block<'_>) -> bool {
    match block {
        Block::Text { text, .. } => !text.is_empty(),
        Block::Reasoning { .. } | Block::RedactedReasoning { .. } => false,
        Block::Image { .. } | Block::Document { .. } | Block::ToolCall { .. } | Block::ToolResult { .. } => true,
    }
}

fn joined<'a, 'b: 'a>(blocks: impl Iterator<Item = &'a Block<'b>>) -> String {
    let texts: Vec<&str> = blocks
        .filter_map(|block| match block {
            Block::Text { text, .. } => Some(text.as_ref()).filter(|text| !text.is_empty()),
            _ => None,
        })
        .collect();
    texts.join("\n\n")
}

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
