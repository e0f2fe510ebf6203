//! The body of a request, written from the form that all dialects have in common.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::models::{insists_on_signatures, most_output, refuses_penalties, takes_tools_with_form};
use super::schema::{Room, Schema, answer, parameters};
use super::thinking::{Thinking, thinking};
use super::{IMAGE_TYPES, is_file};
use crate::dialect::openai::{Outgoing, RequestError};
use crate::hub::{
    Block, Conversation, Format, ImageSource, Lost, Role, SettingKind, Signer, Tool, ToolChoice, Turn, in_words,
    input_object, joined_text, leave_out,
};
use crate::images::ImageText;
use crate::json::Members;

/// The most stop sequences (Gemini API reference, GenerationConfig, `stopSequences`).
const MAX_STOPS: usize = 5;

/// Stands for the signature of a call that has lost its own, or that another provider's model made (Gemini API, Thought
/// signatures, FAQ).
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<Content<'a>>,
    contents: Vec<Content<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tools<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_config: Option<ToolConfig<'a>>,
    #[serde(skip_serializing_if = "GenerationConfig::is_empty")]
    generation_config: GenerationConfig<'a>,
}

#[derive(Serialize)]
struct Content<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    parts: Vec<Part<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(flatten)]
    data: Data<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    thought: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<Cow<'a, str>>,
}

impl<'a> Part<'a> {
    fn of(data: Data<'a>) -> Self {
        Self { data, thought: false, thought_signature: None }
    }

    fn is_unsigned_text(&self) -> bool {
        matches!(self.data, Data::Text(_)) && !self.thought && self.thought_signature.is_none()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Data<'a> {
    Text(Cow<'a, str>),
    #[serde(rename = "inlineData", rename_all = "camelCase")]
    Inline {
        mime_type: &'a str,
        data: ImageText<'a>,
    },
    #[serde(rename = "fileData", rename_all = "camelCase")]
    File {
        file_uri: &'a str,
    },
    FunctionCall {
        id: &'a str,
        name: &'a str,
        args: Box<RawValue>,
    },
    FunctionResponse {
        id: &'a str,
        name: &'a str,
        response: Response,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Response {
    Object(Box<RawValue>),
    Result { result: String },
    Error { error: String },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tools<'a> {
    function_declarations: Vec<Declaration<'a>>,
}

#[derive(Serialize)]
struct Declaration<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Schema>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolConfig<'a> {
    function_calling_config: CallingConfig<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallingConfig<'a> {
    mode: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_function_names: Vec<&'a str>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop_sequences: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_mime_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_schema: Option<Schema>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_config: Option<Thinking>,
}

impl GenerationConfig<'_> {
    fn is_empty(&self) -> bool {
        let numbers =
            [self.temperature, self.top_p, self.top_k, self.seed, self.frequency_penalty, self.presence_penalty];
        numbers.iter().all(Option::is_none)
            && self.max_output_tokens.is_none()
            && self.stop_sequences.is_empty()
            && self.response_mime_type.is_none()
            && self.thinking_config.is_none()
    }
}

/// Writes a request, and adds to `dropped` what the API has no place for.
///
/// # Errors
/// [`RequestError`] for a conversation in which nobody says anything, for an image that the API cannot read, and for the
/// result of a tool that nobody called.
pub(crate) fn body(
    conversation: &Conversation<'_>,
    outgoing: &Outgoing<'_>,
    dropped: &mut Vec<Lost>,
) -> Result<Vec<u8>, RequestError> {
    let tool_names = conversation.tool_names();
    let mut writing = Writing { conversation, outgoing, tool_names, schemas: Room::default(), dropped };
    let mut contents = Vec::with_capacity(conversation.turns.len());
    for turn in &conversation.turns {
        let parts = writing.turn(turn)?;
        if !parts.is_empty() {
            let role = if turn.role == Role::User { "user" } else { "model" };
            contents.push(Content { role: Some(role), parts });
        }
    }
    if contents.is_empty() {
        return Err(invalid("a conversation with something said by the user"));
    }
    let mut rules = writing.parts(&conversation.system)?;
    let clash = Clash::of(conversation, outgoing.model);
    if let (Clash::Form, Some(format)) = (clash, &conversation.format) {
        writing.drop(Lost::Format);
        rules.push(Part::of(Data::Text(in_words(format).into())));
    }
    let has_tools = clash != Clash::Tools;
    let body = Body {
        system_instruction: (!rules.is_empty()).then_some(Content { role: None, parts: rules }),
        contents,
        tools: if has_tools { writing.tools() } else { Vec::new() },
        tool_config: tool_config(conversation).filter(|_| has_tools),
        generation_config: writing.config(clash != Clash::Form),
    };
    if conversation.parallel_tools == Some(false) && !conversation.tools.is_empty() {
        writing.drop(Lost::OneAtATime);
    }
    if conversation.user.is_some() {
        writing.drop(Lost::User);
    }
    serde_json::to_vec(&body).map_err(|error| RequestError::Malformed(error.to_string()))
}

/// What of a request cannot go together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clash {
    Nothing,
    /// The form of the answer goes, and is told to the model.
    Form,
    /// The tools go, of which the model may call none anyway.
    Tools,
}

impl Clash {
    fn of(conversation: &Conversation<'_>, model: &str) -> Self {
        if conversation.tools.is_empty() || conversation.format.is_none() || takes_tools_with_form(model) {
            return Self::Nothing;
        }
        if conversation.tool_choice == Some(ToolChoice::None) { Self::Tools } else { Self::Form }
    }
}

fn invalid(must: &'static str) -> RequestError {
    RequestError::Invalid { field: "messages".to_owned(), must }
}

struct Writing<'a, 'b> {
    conversation: &'a Conversation<'b>,
    outgoing: &'a Outgoing<'a>,
    /// By the ids of their calls.
    tool_names: HashMap<&'a str, &'a str>,
    schemas: Room,
    dropped: &'a mut Vec<Lost>,
}

impl<'a> Writing<'a, '_> {
    fn drop(&mut self, lost: Lost) {
        leave_out(self.dropped, lost);
    }

    fn turn(&mut self, turn: &'a Turn<'_>) -> Result<Vec<Part<'a>>, RequestError> {
        if turn.role == Role::Assistant {
            let mut parts = self.parts(&turn.blocks)?;
            if insists_on_signatures(self.outgoing.model) {
                mark_first_call(&mut parts);
            }
            return Ok(parts);
        }
        // The answers to the last turn's calls come first.
        let (results, others) = turn.results_apart();
        let mut parts = self.parts(results.iter().copied())?;
        for result in results {
            // What is no text has no place in a result; it comes behind all of them.
            let Block::ToolResult { content, .. } = result else { continue };
            parts.extend(self.parts(content.iter().filter(|block| !matches!(block, Block::Text { .. })))?);
        }
        parts.extend(self.parts(others)?);
        Ok(parts)
    }

    fn parts<'c>(&mut self, blocks: impl IntoIterator<Item = &'a Block<'c>>) -> Result<Vec<Part<'a>>, RequestError>
    where
        'c: 'a,
    {
        let mut parts: Vec<Part<'a>> = Vec::new();
        // A thought's signature stands with what followed from it, and a text's with the text.
        let (mut signature, mut of_text): (Option<Cow<'a, str>>, Option<Cow<'a, str>>) = (None, None);
        let alone = |signature| Part { thought_signature: Some(signature), ..Part::of(Data::Text("".into())) };
        for block in blocks {
            if let Block::Reasoning { text, signature: given } = block {
                if !text.is_empty() {
                    parts.push(Part { thought: true, ..Part::of(Data::Text(Cow::Borrowed(text))) });
                }
                if let Some(own) = given.as_deref().and_then(|given| Signer::GeminiText.own(given)) {
                    match parts.last_mut().filter(|part| part.is_unsigned_text()) {
                        Some(part) => part.thought_signature = Some(Cow::Borrowed(own)),
                        None => of_text = Some(Cow::Borrowed(own)),
                    }
                } else if let Some(own) = self.own(given.as_deref(), Lost::Signature) {
                    parts.extend(signature.replace(own).map(alone));
                }
                continue;
            }
            let own = match block {
                Block::ToolCall { signature, .. } => self.own(signature.as_deref(), Lost::CallSignature),
                _ => None,
            };
            if let Some(data) = self.data(block)? {
                if own.is_some() {
                    parts.extend(signature.take().map(alone));
                }
                let is_text = matches!(data, Data::Text(_));
                let texts = of_text.take_if(|_| is_text);
                let thought_signature = own.or(texts).or_else(|| signature.take());
                parts.push(Part { data, thought: false, thought_signature });
            }
        }
        parts.extend(of_text.map(alone));
        parts.extend(signature.map(alone));
        Ok(parts)
    }

    /// A signature without its mark. Another provider's is left out.
    fn own(&mut self, signature: Option<&'a str>, lost: Lost) -> Option<Cow<'a, str>> {
        let own = Signer::Gemini.own(signature?);
        if own.is_none() {
            self.drop(lost);
        }
        own.map(Cow::Borrowed)
    }

    fn data(&mut self, block: &'a Block<'_>) -> Result<Option<Data<'a>>, RequestError> {
        let cache = match block {
            Block::Text { cache, .. } | Block::Image { cache, .. } | Block::Document { cache, .. } => *cache,
            Block::ToolResult { cache, .. } => *cache,
            _ => None,
        };
        if cache.is_some() {
            self.drop(Lost::CacheMark);
        }
        Ok(Some(match block {
            Block::Text { text, .. } if text.is_empty() => return Ok(None),
            Block::Text { text, .. } => Data::Text(Cow::Borrowed(text)),
            Block::Image { source, detail, .. } => {
                if detail.as_deref().is_some_and(|detail| detail != "auto") {
                    self.drop(Lost::Detail);
                }
                self.image(source)?
            }
            Block::Document { media_type, data, .. } => {
                Data::Inline { mime_type: media_type, data: ImageText::Given(data) }
            }
            Block::Reasoning { .. } => return Ok(None),
            Block::RedactedReasoning { .. } => {
                self.drop(Lost::Redacted);
                return Ok(None);
            }
            Block::ToolCall { id, name, arguments, .. } => {
                Data::FunctionCall { id, name, args: input_object(arguments) }
            }
            Block::ToolResult { call_id, name, content, is_error, .. } => {
                let name = name.as_deref().or_else(|| self.tool_names.get(call_id.as_ref()).copied());
                let name = name.ok_or_else(|| invalid("free of results of tools that were not called before"))?;
                Data::FunctionResponse { id: call_id, name, response: response(content, *is_error) }
            }
        }))
    }

    fn image(&self, source: &'a ImageSource<'_>) -> Result<Data<'a>, RequestError> {
        const READABLE: &str = "free of images other than PNG, JPEG, WebP, HEIC and HEIF";
        match source {
            ImageSource::Url(url) if is_file(url) => Ok(Data::File { file_uri: url }),
            source => {
                let image = source.inline(self.outgoing.images, IMAGE_TYPES);
                let (mime_type, data) = image.ok_or_else(|| invalid(READABLE))?;
                Ok(Data::Inline { mime_type, data })
            }
        }
    }

    fn tools(&mut self) -> Vec<Tools<'a>> {
        let tools = &self.conversation.tools;
        if tools.iter().any(|tool| tool.strict == Some(true)) {
            self.drop(Lost::Strict);
        }
        if tools.iter().any(|tool| tool.cache.is_some()) {
            self.drop(Lost::CacheMark);
        }
        let declaration = |tool: &'a Tool<'_>| Declaration {
            name: &tool.name,
            description: tool.description.as_deref(),
            parameters: tool.parameters.and_then(|schema| parameters(schema, &mut self.schemas)),
        };
        let function_declarations: Vec<_> = tools.iter().map(declaration).collect();
        if function_declarations.is_empty() { Vec::new() } else { vec![Tools { function_declarations }] }
    }

    fn config(&mut self, has_form: bool) -> GenerationConfig<'a> {
        let conversation = self.conversation;
        let mut config = GenerationConfig::default();
        for setting in &conversation.settings {
            let is_penalty = matches!(setting.kind, SettingKind::FrequencyPenalty | SettingKind::PresencePenalty);
            if is_penalty && refuses_penalties(self.outgoing.model) {
                if setting.value.get().parse() != Ok(0.0) {
                    self.drop(Lost::Setting(setting.name));
                }
                continue;
            }
            let place = match setting.kind {
                SettingKind::Temperature => &mut config.temperature,
                SettingKind::TopP => &mut config.top_p,
                SettingKind::TopK => &mut config.top_k,
                SettingKind::Seed => &mut config.seed,
                SettingKind::FrequencyPenalty => &mut config.frequency_penalty,
                SettingKind::PresencePenalty => &mut config.presence_penalty,
            };
            *place = Some(setting.value);
        }
        let limit = conversation.output_within(self.outgoing.output_bound.map(|bound| bound.tokens));
        let most = most_output(self.outgoing.model).unwrap_or(u64::MAX);
        config.max_output_tokens = limit.map(|limit| limit.min(most));
        let stops = conversation.stop.iter().map(AsRef::as_ref).filter(|stop| !stop.is_empty());
        config.stop_sequences = stops.take(MAX_STOPS).collect();
        if config.stop_sequences.len() < conversation.stop.len() {
            self.drop(Lost::Stop);
        }
        match conversation.format.as_ref().filter(|_| has_form) {
            Some(Format::Json) => config.response_mime_type = Some("application/json"),
            Some(Format::Schema { schema, .. }) => {
                config.response_mime_type = Some("application/json");
                config.response_schema = Some(answer(schema, &mut self.schemas));
            }
            None => {}
        }
        if let Some(reasoning) = conversation.reasoning {
            config.thinking_config = thinking(reasoning, self.outgoing.model);
            if config.thinking_config.is_none() {
                self.drop(Lost::Setting(reasoning.name));
            }
        }
        config
    }
}

/// Marks the first call of a turn that has no signature: the others of a turn need none.
fn mark_first_call(parts: &mut [Part<'_>]) {
    let first = parts.iter_mut().find(|part| matches!(part.data, Data::FunctionCall { .. }));
    if let Some(part) = first {
        part.thought_signature.get_or_insert(Cow::Borrowed(NO_SIGNATURE));
    }
}

/// The result of a tool as the object that the API wants.
fn response(content: &[Block<'_>], is_error: bool) -> Response {
    let text = joined_text(content);
    if is_error {
        return Response::Error { error: text };
    }
    match RawValue::from_string(text) {
        Ok(value) if Members::parse(value.get()).is_ok() => Response::Object(value),
        Ok(value) => Response::Result { result: value.get().to_owned() },
        Err(_) => Response::Result { result: joined_text(content) },
    }
}

fn tool_config<'a>(conversation: &'a Conversation<'_>) -> Option<ToolConfig<'a>> {
    if conversation.tools.is_empty() {
        return None;
    }
    let (mode, allowed_function_names) = match conversation.tool_choice.as_ref()? {
        ToolChoice::Auto => ("AUTO", Vec::new()),
        ToolChoice::None => ("NONE", Vec::new()),
        ToolChoice::Required => ("ANY", Vec::new()),
        ToolChoice::Named(name) => ("ANY", vec![name.as_ref()]),
    };
    Some(ToolConfig { function_calling_config: CallingConfig { mode, allowed_function_names } })
}
