//! The body of a request, written from the form that all dialects have in common.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::models::{Model, Samples};
use super::schema::closed;
use super::thinking::{Asked, Thinking, thinking};
use crate::dialect::openai::{Outgoing, RequestError};
use crate::hub::{
    Block, Conversation, FittedIds, Format, IdRule, ImageSource, Lost, Role, SettingKind, Signer, Tool, ToolChoice,
    Turn, input_object, leave_out, short_user, text_of_document,
};
use crate::images::ImageText;
use crate::json::Members;

/// The bound for an answer that nobody else bounds: the API insists on one (Anthropic API reference, Create a Message,
/// `max_tokens`). The number is ours: the most that its oldest models write, so that none refuses it (Models overview).
const DEFAULT_MAX_TOKENS: u64 = 4096;

/// What the API takes for the id of a call (its refusal of another names the pattern `^[a-zA-Z0-9_-]+$`).
pub(super) const CALL_IDS: IdRule = IdRule::Word;

/// The most letters of a user's id (Anthropic API reference, Create a Message, `metadata.user_id`).
const LONGEST_USER: usize = 256;

/// The images that the API reads (Anthropic API, Vision).
const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<Content<'a>>,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ToolOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<ChoiceOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Thinking>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop_sequences: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Content<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Blocks(Vec<BlockOut<'a>>),
}

#[derive(Serialize)]
struct BlockOut<'a> {
    #[serde(flatten)]
    kind: Kind<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Kind<'a> {
    Text {
        text: &'a str,
    },
    Image {
        source: Source<'a>,
    },
    Document {
        source: Source<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: &'a str,
        input: Box<RawValue>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        content: Content<'a>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Source<'a> {
    Url { url: &'a str },
    Base64 { media_type: &'a str, data: ImageText<'a> },
    Text { media_type: &'static str, data: String },
}

#[derive(Serialize)]
struct ToolOut<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    input_schema: Cow<'a, RawValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct ChoiceOut<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    disable_parallel_tool_use: bool,
}

#[derive(Default, Serialize)]
struct OutputConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<FormatOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FormatOut {
    JsonSchema { schema: Box<RawValue> },
}

#[derive(Serialize)]
struct Metadata<'a> {
    user_id: Cow<'a, str>,
}

/// Writes a request, and adds to `dropped` what the API has no place for.
///
/// # Errors
/// [`RequestError`] for a conversation in which nobody says anything, and for a file that the API cannot read.
pub(crate) fn body(
    conversation: &Conversation<'_>,
    outgoing: &Outgoing<'_>,
    dropped: &mut Vec<Lost>,
) -> Result<Vec<u8>, RequestError> {
    let model = Model::of(outgoing.model);
    let max_tokens = max_tokens(conversation, outgoing, model);
    let tool_choice = tool_choice(conversation);
    let Asked { thinking, effort } = thinking(conversation, model, max_tokens, dropped);
    let ids = conversation.fitted_ids(CALL_IDS);
    let mut turns: Vec<(Role, Vec<BlockOut<'_>>)> = Vec::with_capacity(conversation.turns.len());
    for turn in &conversation.turns {
        let blocks = turn_blocks(turn, &ids, dropped)?;
        // What one side says goes on where nothing is left of what the other said between.
        match turns.last_mut().filter(|(role, _)| *role == turn.role) {
            _ if blocks.is_empty() => {}
            Some((_, said)) => said.extend(blocks),
            None => turns.push((turn.role, blocks)),
        }
    }
    let mut messages: Vec<Message<'_>> = turns
        .into_iter()
        .map(|(role, blocks)| {
            let role = if role == Role::User { "user" } else { "assistant" };
            Message { role, content: content(blocks) }
        })
        .collect();
    if messages.is_empty() {
        return Err(RequestError::Invalid {
            field: "messages".to_owned(),
            must: "a conversation with something said by the user",
        });
    }
    trim_end(messages.last_mut());
    let mut body = Body {
        model: outgoing.model,
        max_tokens,
        system: system(conversation)?,
        messages,
        tools: conversation.tools.iter().map(tool).collect(),
        tool_choice,
        output_config: effort.map(|effort| OutputConfig { effort: Some(effort), format: None }),
        stop_sequences: conversation.stop.iter().map(AsRef::as_ref).filter(|stop| !stop.trim().is_empty()).collect(),
        temperature: None,
        top_p: None,
        top_k: None,
        metadata: conversation.user.as_deref().map(|user| Metadata { user_id: short_user(user, LONGEST_USER) }),
        stream: conversation.stream,
        thinking,
    };
    match &conversation.format {
        // The API has schemas only; any object is what a prompt has to ask for.
        Some(Format::Json) => leave_out(dropped, Lost::Format),
        Some(Format::Schema { name, description, schema, strict }) => {
            // Answers keep to a schema always, and it has no name.
            let lost = [
                ("name", *name != "answer"),
                ("description", description.is_some()),
                ("strict", *strict == Some(false)),
            ];
            for (member, _) in lost.iter().filter(|(_, is_lost)| *is_lost) {
                leave_out(dropped, Lost::BesideSchema(member));
            }
            let (schema, is_less) = closed(schema).unwrap_or_else(|| ((*schema).to_owned(), false));
            if is_less {
                leave_out(dropped, Lost::BesideSchema("schema"));
            }
            body.output_config.get_or_insert_default().format = Some(FormatOut::JsonSchema { schema });
        }
        None => {}
    }
    if body.stop_sequences.len() < conversation.stop.len() {
        // Refused by the API: they consist of white space.
        leave_out(dropped, Lost::Stop);
    }
    settings(conversation, model, &mut body, dropped);
    serde_json::to_vec(&body).map_err(|error| RequestError::Malformed(error.to_string()))
}

/// Takes white space off the end of an answer that the model is to go on with: the API refuses it.
fn trim_end(last: Option<&mut Message<'_>>) {
    let Some(Message { role: "assistant", content }) = last else { return };
    match content {
        Content::Text(Cow::Borrowed(text)) => *text = text.trim_end(),
        Content::Text(Cow::Owned(text)) => text.truncate(text.trim_end().len()),
        Content::Blocks(blocks) => {
            if let Some(BlockOut { kind: Kind::Text { text }, .. }) = blocks.last_mut() {
                *text = text.trim_end();
            }
        }
    }
}

/// The bound of the answer, reasoning included.
fn max_tokens(conversation: &Conversation<'_>, outgoing: &Outgoing<'_>, model: Model) -> u64 {
    let asked = conversation.output_limit.or(outgoing.max_output).unwrap_or(DEFAULT_MAX_TOKENS);
    let kept = outgoing.output_bound.map(|bound| conversation.output_limit.unwrap_or(u64::MAX).min(bound.tokens));
    // More than a model can write is refused.
    kept.unwrap_or(asked).min(model.most_output.unwrap_or(u64::MAX)).max(1)
}

fn system<'a>(conversation: &'a Conversation<'_>) -> Result<Option<Content<'a>>, RequestError> {
    let blocks = blocks(conversation.system.iter(), &FittedIds::default(), &mut Vec::new())?;
    if blocks.is_empty() {
        return Ok(None);
    }
    if blocks.iter().any(|block| block.cache_control.is_some()) {
        return Ok(Some(Content::Blocks(blocks)));
    }
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(|block| match block.kind {
            Kind::Text { text } => Some(text),
            _ => None,
        })
        .collect();
    Ok(Some(Content::Text(texts.join("\n\n").into())))
}

fn turn_blocks<'a>(
    turn: &'a Turn<'_>,
    ids: &FittedIds<'_>,
    dropped: &mut Vec<Lost>,
) -> Result<Vec<BlockOut<'a>>, RequestError> {
    // The API wants the results of tools before everything else that the user says.
    let (results, others) = turn.results_apart();
    blocks(results.into_iter().chain(others), ids, dropped)
}

fn blocks<'a, 'b: 'a>(
    blocks: impl Iterator<Item = &'a Block<'b>>,
    ids: &FittedIds<'_>,
    dropped: &mut Vec<Lost>,
) -> Result<Vec<BlockOut<'a>>, RequestError> {
    let mut out = Vec::new();
    for block in blocks {
        out.extend(block_out(block, ids, dropped)?);
    }
    Ok(out)
}

/// A string where that says everything.
fn content(mut blocks: Vec<BlockOut<'_>>) -> Content<'_> {
    if blocks.len() == 1
        && let Some(BlockOut { kind: Kind::Text { text }, cache_control: None }) =
            blocks.pop_if(|block| block.cache_control.is_none() && matches!(block.kind, Kind::Text { .. }))
    {
        return Content::Text(Cow::Borrowed(text));
    }
    Content::Blocks(blocks)
}

fn block_out<'a>(
    block: &'a Block<'_>,
    ids: &FittedIds<'_>,
    dropped: &mut Vec<Lost>,
) -> Result<Option<BlockOut<'a>>, RequestError> {
    let (kind, cache_control) = match block {
        // The API refuses texts of nothing.
        Block::Text { text, .. } if text.trim().is_empty() => return Ok(None),
        Block::Text { text, cache } => (Kind::Text { text }, *cache),
        Block::Image { source, detail, cache } => {
            if detail.as_deref().is_some_and(|detail| detail != "auto") {
                leave_out(dropped, Lost::Detail);
            }
            let source = match source {
                ImageSource::Url(url) => Source::Url { url },
                source => {
                    let image = source.inline(None, &IMAGE_TYPES);
                    let (media_type, data) = image.ok_or_else(|| RequestError::Invalid {
                        field: "messages".to_owned(),
                        must: "free of images other than JPEG, PNG, GIF and WebP, which the provider cannot read",
                    })?;
                    Source::Base64 { media_type, data }
                }
            };
            (Kind::Image { source }, *cache)
        }
        Block::Document { media_type, data, name, cache } => {
            let source = document(media_type, data)?;
            (Kind::Document { source, title: name.as_deref() }, *cache)
        }
        Block::Reasoning { text, signature } => {
            let Some(signature) = signature.as_deref().and_then(|signature| Signer::Anthropic.own(signature)) else {
                // Thoughts without the provider's signature are somebody else's, and refused.
                leave_out(dropped, Lost::Thought);
                return Ok(None);
            };
            (Kind::Thinking { thinking: text, signature }, None)
        }
        Block::RedactedReasoning { data } => {
            let Some(data) = Signer::Anthropic.own(data) else {
                leave_out(dropped, Lost::Redacted);
                return Ok(None);
            };
            (Kind::RedactedThinking { data }, None)
        }
        Block::ToolCall { id, name, arguments, signature } => {
            if signature.is_some() {
                leave_out(dropped, Lost::CallSignature);
            }
            (Kind::ToolUse { id: ids.fit(id), name, input: input_object(arguments) }, None)
        }
        Block::ToolResult { call_id: of, content: said, is_error, cache, .. } => {
            let content = content(blocks(said.iter(), ids, dropped)?);
            (Kind::ToolResult { tool_use_id: ids.fit(of), content, is_error: *is_error }, *cache)
        }
    };
    Ok(Some(BlockOut { kind, cache_control }))
}

fn document<'a>(media_type: &'a str, data: &'a str) -> Result<Source<'a>, RequestError> {
    let unreadable = || RequestError::Invalid {
        field: "messages".to_owned(),
        must: "free of files other than PDF and plain text, which the provider cannot read",
    };
    match media_type {
        "application/pdf" => Ok(Source::Base64 { media_type, data: ImageText::Given(data) }),
        kind => {
            let data = text_of_document(kind, data).ok_or_else(unreadable)?;
            Ok(Source::Text { media_type: "text/plain", data })
        }
    }
}

fn tool<'a>(tool: &'a Tool<'_>) -> ToolOut<'a> {
    let is_strict = tool.strict == Some(true);
    // Arguments that are held to a schema are held to it like answers.
    let input_schema = match schema(tool.parameters) {
        schema if is_strict => closed(&schema).map_or(schema, |(closed, _)| Cow::Owned(closed)),
        schema => schema,
    };
    ToolOut {
        name: &tool.name,
        description: tool.description.as_deref(),
        input_schema,
        strict: is_strict,
        cache_control: tool.cache,
    }
}

/// A schema that says what it is of, as the API demands.
fn schema(parameters: Option<&RawValue>) -> Cow<'_, RawValue> {
    let text = parameters.map_or("{}", RawValue::get);
    match (parameters, Members::parse(text)) {
        (Some(parameters), Ok(members)) if members.get("type").is_some() => Cow::Borrowed(parameters),
        (Some(parameters), Err(_)) => Cow::Borrowed(parameters),
        (_, Ok(members)) if !members.is_empty() => {
            let (head, tail) = text.split_at(members.inside(text));
            let typed = RawValue::from_string(format!("{head}\"type\":\"object\",{tail}"));
            Cow::Owned(typed.unwrap_or_default())
        }
        _ => {
            let empty = RawValue::from_string(r#"{"type":"object","properties":{}}"#.to_owned());
            Cow::Owned(empty.unwrap_or_default())
        }
    }
}

fn tool_choice<'a>(conversation: &'a Conversation<'_>) -> Option<ChoiceOut<'a>> {
    if conversation.tools.is_empty() {
        return None;
    }
    let one_at_once = conversation.parallel_tools == Some(false);
    let choice = |kind, name, disable_parallel_tool_use| Some(ChoiceOut { kind, name, disable_parallel_tool_use });
    match &conversation.tool_choice {
        Some(ToolChoice::None) => choice("none", None, false),
        Some(ToolChoice::Required) => choice("any", None, one_at_once),
        Some(ToolChoice::Named(name)) => choice("tool", Some(name.as_ref()), one_at_once),
        Some(ToolChoice::Auto) => choice("auto", None, one_at_once),
        None if one_at_once => choice("auto", None, true),
        None => None,
    }
}

fn settings<'a>(conversation: &'a Conversation<'_>, model: Model, body: &mut Body<'a>, dropped: &mut Vec<Lost>) {
    let thinks = body.thinking.is_some();
    let has_temperature = conversation.settings.iter().any(|setting| setting.kind == SettingKind::Temperature);
    for setting in &conversation.settings {
        let number = setting.value.get().parse::<f64>();
        match setting.kind {
            // As it is anyway.
            SettingKind::Temperature if model.samples == Samples::Never && number == Ok(1.0) => {}
            _ if model.samples == Samples::Never => leave_out(dropped, Lost::Setting(setting.name)),
            SettingKind::TopP if model.samples == Samples::ByOne && has_temperature && !thinks => {
                leave_out(dropped, Lost::Setting(setting.name));
            }
            // Other than as it is, the model does not think (Anthropic API reference, Extended thinking).
            SettingKind::Temperature if !thinks => {
                if number.is_ok_and(|number| number > 1.0) {
                    leave_out(dropped, Lost::Setting(setting.name));
                }
                body.temperature = temperature(setting.value);
            }
            SettingKind::Temperature if number == Ok(1.0) => {}
            SettingKind::TopP if !thinks || number.is_ok_and(|number| number >= 0.95) => {
                body.top_p = Some(setting.value);
            }
            SettingKind::TopK if !thinks => body.top_k = Some(setting.value),
            _ => leave_out(dropped, Lost::Setting(setting.name)),
        }
    }
}

/// The API's temperatures end at 1, where those of others end at 2: more than 1 is 1.
fn temperature(value: &RawValue) -> Option<Box<RawValue>> {
    if value.get().parse::<f64>().is_ok_and(|number| number > 1.0) {
        return to_raw_value(&1).ok();
    }
    Some(value.to_owned())
}
