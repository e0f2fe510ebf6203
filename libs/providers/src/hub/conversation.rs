//! A request as every chat dialect can say it. Texts and raw values are borrowed from the client's body.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::call_ids::{FittedIds, IdRule};
use crate::images::{FetchedImages, ImageText, checked_data, is_base64};
use crate::json::{Members, literal};

/// Who speaks in a turn. Rules of the conversation are no turn, and results of tools are what the user says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    User,
    Assistant,
}

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageSource<'a> {
    /// At an address that somebody has to fetch it from.
    Url(Cow<'a, str>),
    /// In the request, as standard base64.
    Base64 { media_type: Cow<'a, str>, data: Cow<'a, str> },
}

impl<'a> ImageSource<'a> {
    /// What a URL leads to; `None` for a `data:` URL (RFC 2397) without a media type or in another form than base64.
    pub(crate) fn of_url(url: Cow<'a, str>) -> Option<Self> {
        const SCHEME: &str = "data:";
        if !url.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME)) {
            return Some(Self::Url(url));
        }
        let comma = url.find(',')?;
        let mut head = url.get(SCHEME.len()..comma)?.split(';');
        let media_type = head.next()?.trim().to_ascii_lowercase();
        let is_base64 = head.next_back().is_some_and(|form| form.trim().eq_ignore_ascii_case("base64"));
        if media_type.is_empty() || !is_base64 {
            return None;
        }
        let data = match url {
            Cow::Borrowed(url) => Cow::Borrowed(url.get(comma + 1..)?),
            Cow::Owned(mut url) => Cow::Owned(url.split_off(comma + 1)),
        };
        Some(Self::Base64 { media_type: Cow::Owned(media_type), data })
    }

    /// Its media type and its bytes as base64, if they are here, in the request or fetched for it, and of a type that
    /// the provider reads.
    pub(crate) fn inline<'s>(
        &'s self,
        fetched: Option<&'s FetchedImages>,
        read: &'static [&'static str],
    ) -> Option<(&'s str, ImageText<'s>)> {
        match self {
            Self::Base64 { media_type, data } => {
                let (media_type, data) = checked_data(media_type, data, read)?;
                Some((media_type, ImageText::Given(data)))
            }
            Self::Url(url) => {
                let image = fetched?.get(url).filter(|image| read.contains(&image.media_type.as_str()))?;
                Some((&image.media_type, ImageText::Fetched(&image.data)))
            }
        }
    }

    /// Whether it is where an image can be: at an address of the web or of Google's storage, or whole in the request. It is
    /// looked at once, when the request is read.
    pub(crate) fn is_plausible(&self) -> bool {
        match self {
            Self::Url(url) => url.split_once("://").is_some_and(|(scheme, _)| {
                ["https", "http", "gs"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
            }),
            Self::Base64 { data, .. } => is_base64(data),
        }
    }
}

/// The media type of a file and its bytes as base64, as OpenAI's APIs have both: a `data:` URL, or bare base64 of the
/// one kind that they take where nothing is said (API reference, `file_data`).
pub(crate) fn file_of(data: Cow<'_, str>) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    if !data.starts_with("data:") {
        return Some((Cow::Borrowed("application/pdf"), data));
    }
    match ImageSource::of_url(data)? {
        ImageSource::Base64 { media_type, data } => Some((media_type, data)),
        ImageSource::Url(_) => None,
    }
}

/// What a document says that is plain text, which needs no file.
pub(crate) fn text_of_document(media_type: &str, data: &str) -> Option<String> {
    let bytes = STANDARD.decode(data).ok().filter(|_| media_type.starts_with("text/"))?;
    String::from_utf8(bytes).ok()
}

/// The texts among blocks, one below the other.
pub(crate) fn joined_text(blocks: &[Block<'_>]) -> String {
    let text = |block: &'_ Block<'_>| match block {
        Block::Text { text, .. } => Some(text.to_string()),
        _ => None,
    };
    blocks.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

/// The arguments of a call as an object, for dialects that want one. What is none, a model's slip, is kept as a text.
pub(crate) fn input_object(arguments: &str) -> Box<RawValue> {
    let json = match arguments.trim() {
        "" => "{}".to_owned(),
        text if Members::parse(text).is_ok() => text.to_owned(),
        text => format!("{{\"arguments\":{}}}", literal(text)),
    };
    RawValue::from_string(json).unwrap_or_default()
}

/// A piece of what is said in a turn.
#[derive(Clone, Debug)]
pub(crate) enum Block<'a> {
    Text {
        text: Cow<'a, str>,
        /// `cache_control` as the client wrote it: the prompt may be cached up to here.
        cache: Option<&'a RawValue>,
    },
    Image {
        source: ImageSource<'a>,
        /// How closely the model is to look at it, as OpenAI's `detail`.
        detail: Option<Cow<'a, str>>,
        cache: Option<&'a RawValue>,
    },
    /// A document, such as a PDF file, as standard base64.
    Document { media_type: Cow<'a, str>, data: Cow<'a, str>, name: Option<Cow<'a, str>>, cache: Option<&'a RawValue> },
    /// What the model thought. Providers that sign it want it back as it was. All signatures are under the mark of their
    /// [`super::Signer`].
    Reasoning { text: Cow<'a, str>, signature: Option<Cow<'a, str>> },
    /// What the model thought, readable by its provider alone, under its signer's mark.
    RedactedReasoning { data: Cow<'a, str> },
    ToolCall {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        /// JSON as text, exactly as the model wrote it.
        arguments: Cow<'a, str>,
        /// The provider's mark on the thought that led to the call, which it wants back (Gemini).
        signature: Option<Cow<'a, str>>,
    },
    ToolResult {
        call_id: Cow<'a, str>,
        /// The tool's name, found by the call's id where the dialect does not repeat it.
        name: Option<Cow<'a, str>>,
        /// Texts, images and documents.
        content: Vec<Block<'a>>,
        is_error: bool,
        cache: Option<&'a RawValue>,
    },
}

impl Block<'_> {
    fn image_url(&self) -> Option<&str> {
        match self {
            Self::Image { source: ImageSource::Url(url), .. } => Some(url),
            _ => None,
        }
    }

    /// Whether nothing of ours may come before it in a turn.
    fn comes_first(&self) -> bool {
        match self {
            Self::ToolResult { .. } => true,
            Self::Text { cache, .. } | Self::Image { cache, .. } | Self::Document { cache, .. } => cache.is_some(),
            Self::Reasoning { .. } | Self::RedactedReasoning { .. } | Self::ToolCall { .. } => false,
        }
    }
}

/// What one side says before the other speaks again. Turns alternate, and none is empty.
#[derive(Clone, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) role: Role,
    pub(crate) blocks: Vec<Block<'a>>,
}

impl<'a> Turn<'a> {
    /// The results of tools, and everything else.
    pub(crate) fn results_apart(&self) -> (Vec<&Block<'a>>, Vec<&Block<'a>>) {
        self.blocks.iter().partition(|block| matches!(block, Block::ToolResult { .. }))
    }
}

/// A function that the client runs for the model.
#[derive(Clone, Debug)]
pub(crate) struct Tool<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) description: Option<Cow<'a, str>>,
    /// JSON Schema of the arguments.
    pub(crate) parameters: Option<&'a RawValue>,
    pub(crate) strict: Option<bool>,
    pub(crate) cache: Option<&'a RawValue>,
}

/// Whether the model has to call a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice<'a> {
    Auto,
    None,
    Required,
    Named(Cow<'a, str>),
}

/// The form of the answer.
#[derive(Clone, Debug)]
pub(crate) enum Format<'a> {
    /// Any JSON object.
    Json,
    Schema {
        name: Cow<'a, str>,
        description: Option<Cow<'a, str>>,
        schema: &'a RawValue,
        strict: Option<bool>,
    },
}

/// How much the model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    /// More than `high`, where a model has it (`xhigh`, `max`).
    Highest,
}

/// What the client says of the model's thinking. `name` is the field it says it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reasoning {
    pub(crate) name: &'static str,
    pub(crate) effort: Option<Effort>,
    /// The most tokens it may think.
    pub(crate) budget: Option<u64>,
}

/// What a setting is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingKind {
    Temperature,
    TopP,
    TopK,
    Seed,
    FrequencyPenalty,
    PresencePenalty,
}

/// A number that steers how the model chooses its words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) kind: SettingKind,
    /// As the client calls it.
    pub(crate) name: &'static str,
    pub(crate) value: &'a RawValue,
}

/// A request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation<'a> {
    /// The rules: the client's, and before them the project's. Texts only.
    pub(crate) system: Vec<Block<'a>>,
    pub(crate) turns: Vec<Turn<'a>>,
    pub(crate) tools: Vec<Tool<'a>>,
    pub(crate) tool_choice: Option<ToolChoice<'a>>,
    /// Whether the model may call several tools at once.
    pub(crate) parallel_tools: Option<bool>,
    pub(crate) format: Option<Format<'a>>,
    pub(crate) reasoning: Option<Reasoning>,
    /// The most tokens of the answer, reasoning included.
    pub(crate) output_limit: Option<u64>,
    pub(crate) stop: Vec<Cow<'a, str>>,
    pub(crate) settings: Vec<Setting<'a>>,
    /// Whom the client asks for, for the provider's abuse detection.
    pub(crate) user: Option<Cow<'a, str>>,
    /// Members that one provider's API has, which clients of another send where they know who answers: name and value.
    pub(crate) extras: Vec<(&'static str, &'a RawValue)>,
    pub(crate) stream: bool,
    /// Fields of the client's that have no place here, by path. A writer adds those that its provider has no place for.
    pub(crate) dropped: Vec<Cow<'a, str>>,
}

impl<'a> Conversation<'a> {
    /// The most tokens of the answer by the client's word and by a bound that must be kept, which is never none.
    pub(crate) fn output_within(&self, bound: Option<u64>) -> Option<u64> {
        self.output_limit.into_iter().chain(bound.map(|bound| bound.max(1))).min()
    }

    /// Adds to the last turn if it is the same side's, else begins one. Nothing is nothing.
    pub(crate) fn say(&mut self, role: Role, blocks: impl IntoIterator<Item = Block<'a>>) {
        let mut blocks = blocks.into_iter().peekable();
        if blocks.peek().is_none() {
            return;
        }
        match self.turns.last_mut().filter(|turn| turn.role == role) {
            Some(turn) => turn.blocks.extend(blocks),
            None => self.turns.push(Turn { role, blocks: blocks.collect() }),
        }
    }

    /// Puts texts of the gateway into the conversation: the project's prompt before the client's rules, and the context
    /// block before that or before what the user said last, behind everything that a provider may have cached.
    pub(crate) fn ground(&mut self, project_prompt: Option<&'a str>, context: Option<&'a str>, at_last_user: bool) {
        let text = |text: &'a str| Block::Text { text: Cow::Borrowed(text), cache: None };
        let mut front = Vec::new();
        if let Some(context) = context {
            let said_last = self.turns.last_mut().filter(|turn| at_last_user && turn.role == Role::User);
            match said_last {
                Some(turn) => {
                    // After the results of tools, which providers want first, and after what is to be cached.
                    let place = turn.blocks.iter().rposition(Block::comes_first);
                    turn.blocks.insert(place.map_or(0, |at| at + 1), text(context));
                }
                None => {
                    // What changes with every question makes a cache of the rules useless, and a provider charges for it.
                    for block in &mut self.system {
                        if let Block::Text { cache, .. } = block {
                            *cache = None;
                        }
                    }
                    front.push(text(context));
                }
            }
        }
        front.extend(project_prompt.map(text));
        self.system.splice(..0, front);
    }

    /// The URLs of all images, those in the results of tools too.
    pub(crate) fn image_urls(&self) -> Vec<&str> {
        let mut urls = Vec::new();
        for block in self.turns.iter().flat_map(|turn| &turn.blocks) {
            match block {
                Block::ToolResult { content, .. } => urls.extend(content.iter().filter_map(Block::image_url)),
                block => urls.extend(block.image_url()),
            }
        }
        urls
    }

    /// The ids of all calls and results, with `rule`'s for those that it does not take.
    pub(crate) fn fitted_ids(&self, rule: IdRule) -> FittedIds<'_> {
        let ids = self.turns.iter().flat_map(|turn| &turn.blocks).filter_map(|block| match block {
            Block::ToolCall { id, .. } | Block::ToolResult { call_id: id, .. } => Some(Cow::Borrowed(id.as_ref())),
            _ => None,
        });
        FittedIds::new(rule, ids)
    }

    /// The tools that the ids of calls belong to, for dialects that name the tool with its result. Of one id the call that
    /// came last counts.
    pub(crate) fn tool_names(&self) -> HashMap<&str, &str> {
        let blocks = || self.turns.iter().flat_map(|turn| &turn.blocks);
        let mut names = HashMap::new();
        if blocks().any(|block| matches!(block, Block::ToolResult { name: None, .. })) {
            for block in blocks() {
                if let Block::ToolCall { id, name, .. } = block {
                    names.insert(id.as_ref(), name.as_ref());
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Block<'_> {
        Block::Text { text: Cow::Borrowed(text), cache: None }
    }

    fn said<'a>(blocks: &'a [Block<'_>]) -> Vec<&'a str> {
        let word = |block: &'a Block<'_>| match block {
            Block::Text { text, .. } => text.as_ref(),
            Block::ToolResult { .. } => "(result)",
            _ => "(other)",
        };
        blocks.iter().map(word).collect()
    }

    #[test]
    fn a_url_that_holds_its_image_is_taken_apart() {
        let of = |url: &'static str| ImageSource::of_url(url.into());
        let png = |data: &'static str| {
            Some(ImageSource::Base64 { media_type: Cow::Borrowed("image/png"), data: Cow::Borrowed(data) })
        };
        assert_eq!(of("data:image/png;base64,QUJD"), png("QUJD"));
        assert_eq!(of("DATA:IMAGE/PNG;name=a;BASE64,QUJD"), png("QUJD"));
        assert_eq!(of("data:image/png;base64,"), png(""));
        assert_eq!(ImageSource::of_url(Cow::Owned("data:image/png;base64,QUJD".to_owned())), png("QUJD"));
        for refused in ["data:image/png,abc", "data:;base64,QUJD", "data:image/png;base64", "data:"] {
            assert_eq!(of(refused), None, "{refused}");
        }
        assert_eq!(of("https://host.example/a.png"), Some(ImageSource::Url("https://host.example/a.png".into())));
    }

    #[test]
    fn an_image_is_somewhere() {
        let is_plausible = |url: &'static str| ImageSource::of_url(url.into()).is_some_and(|of| of.is_plausible());
        for url in ["https://host.example/a", "HTTP://host.example", "gs://bucket/a", "data:image/png;base64,QUI="] {
            assert!(is_plausible(url), "{url}");
        }
        for url in
            ["", "a.png", "ftp://host.example/a", "file:///a", "data:image/png;base64,!!!", "data:image/png;base64,"]
        {
            assert!(!is_plausible(url), "{url}");
        }
    }

    #[test]
    fn the_tool_of_a_call_is_the_last_of_its_id() {
        let call = |id: &'static str, name: &'static str| Block::ToolCall {
            id: Cow::Borrowed(id),
            name: Cow::Borrowed(name),
            arguments: Cow::Borrowed("{}"),
            signature: None,
        };
        let result = |name: Option<&'static str>| Block::ToolResult {
            call_id: Cow::Borrowed("1"),
            name: name.map(Cow::Borrowed),
            content: Vec::new(),
            is_error: false,
            cache: None,
        };
        let mut conversation = Conversation::default();
        conversation.say(Role::Assistant, [call("1", "a"), call("2", "b")]);
        conversation.say(Role::User, [result(Some("a"))]);
        assert!(conversation.tool_names().is_empty(), "nobody asks");
        conversation.say(Role::Assistant, [call("1", "c")]);
        conversation.say(Role::User, [result(None)]);
        assert_eq!(conversation.tool_names(), HashMap::from([("1", "c"), ("2", "b")]));
    }

    #[test]
    fn turns_alternate_whoever_says_how_much() {
        let mut conversation = Conversation::default();
        conversation.say(Role::User, [text("a"), text("b")]);
        conversation.say(Role::User, [text("c")]);
        conversation.say(Role::Assistant, []);
        conversation.say(Role::User, [text("d")]);
        conversation.say(Role::Assistant, [text("e")]);
        let turns: Vec<_> = conversation.turns.iter().map(|turn| (turn.role, said(&turn.blocks))).collect();
        assert_eq!(turns, [(Role::User, vec!["a", "b", "c", "d"]), (Role::Assistant, vec!["e"])]);
    }

    #[test]
    fn texts_of_ours_go_before_the_clients() {
        let conversation = || {
            let mut conversation = Conversation { system: vec![text("rules")], ..Conversation::default() };
            let result = Block::ToolResult {
                call_id: Cow::Borrowed("1"),
                name: None,
                content: Vec::new(),
                is_error: false,
                cache: None,
            };
            conversation.say(Role::User, [result, text("question")]);
            conversation
        };
        let mut in_front = conversation();
        in_front.ground(Some("project"), Some("context"), false);
        assert_eq!(said(&in_front.system), ["context", "project", "rules"]);
        let mut at_end = conversation();
        at_end.ground(Some("project"), Some("context"), true);
        assert_eq!(said(&at_end.system), ["project", "rules"]);
        assert_eq!(said(&at_end.turns[0].blocks), ["(result)", "context", "question"]);
    }
}
