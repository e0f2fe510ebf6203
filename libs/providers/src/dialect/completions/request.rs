//! A client's completion request, read without copying it (OpenAI API reference, Create completion).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use domain::ProviderType;
use http::HeaderMap;
use serde_json::value::RawValue;

use super::echo::Repeats;
use crate::client::ChatCall;
use crate::countable::Countable;
use crate::dialect::openai::{
    Feature, MAX_ITEMS, Outgoing, OutputBound, RequestError, SERVER_OUTPUT_FIELDS, SpliceRules, ask_for_usage, choices,
    costly_members, flag, include_usage, is_setting, optional_text, output_limit, read_known, text_at, token_count,
};
use crate::dialect::{ClientDialect, UpstreamDialect};
use crate::error::UpstreamError;
use crate::json::{Members, Splices, elements, literal, span, text_of};

const KNOWN: [&str; 16] = [
    "model",
    "prompt",
    "suffix",
    "stream",
    "stream_options",
    "n",
    "best_of",
    "echo",
    MAX_TOKENS,
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
    "num_predict",
    "user",
    "metadata",
    "ragmux",
];
const MAX_TOKENS: &str = "max_tokens";
const MUST: &str = "a string, an array of strings, an array of token numbers or an array of those";
/// What OpenAI's own servers write where a request has no bound, in tokens (API reference, Create completion).
const OPENAI_TOKENS: u64 = 16;

/// Something that is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// So many token numbers.
    Tokens(usize),
}

/// A client's completion request. Everything it does not name is kept in the body it borrows from.
#[derive(Clone, Debug)]
pub struct CompletionRequest<'a> {
    /// The model name asked for; empty when none is given.
    pub model: Cow<'a, str>,
    /// What is to go on, at least one thing. Without any the model begins at the beginning, which is one token.
    pub prompts: Vec<Prompt<'a>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the client wants usage in the stream.
    pub include_usage: bool,
    /// How many answers to each prompt are asked for.
    pub n: u64,
    /// How many answers to each prompt are written, and paid for, of which those are the best.
    pub best_of: u64,
    /// Whether each answer begins with its prompt.
    pub echo: bool,
    /// The largest of all fields that bound the output, in tokens per answer; `None` when nothing bounds it.
    pub output_limit: Option<u64>,
    /// `user` where it is a string.
    pub user: Option<Cow<'a, str>>,
    /// `metadata` as sent, for tags.
    pub metadata: Option<&'a RawValue>,
    text: &'a str,
    members: Members<'a>,
}

impl<'a> CompletionRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        let (text, members) = read_known(body, &KNOWN)?;
        let n = choices(&members, "n")?.unwrap_or(1);
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            prompts: prompts(members.present("prompt"))?,
            stream: flag(&members, "stream", "stream")?,
            include_usage: include_usage(&members)?,
            n,
            best_of: choices(&members, "best_of")?.unwrap_or(1).max(n),
            echo: flag(&members, "echo", "echo")?,
            output_limit: output_limit(&members, &[MAX_TOKENS])?,
            user: members.present("user").and_then(text_of),
            metadata: members.present("metadata"),
            text,
            members,
        })
    }

    /// How many answers are written, and paid for.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.best_of.saturating_mul(self.prompts.len() as u64)
    }

    /// What a provider is known to write at most of one answer where the request has no bound, in tokens.
    #[must_use]
    pub fn usual_output(provider: ProviderType) -> Option<u64> {
        matches!(provider, ProviderType::OpenAi | ProviderType::AzureOpenAi).then_some(OPENAI_TOKENS)
    }

    /// Everything that is, or may become, the prompt: what is to go on, what is to come after it, and whatever is not
    /// known to be something else.
    #[must_use]
    pub fn countable(&self) -> Countable<'_> {
        let mut counted = Countable::with_room_for(self.prompts.len() + 1);
        for prompt in &self.prompts {
            match prompt {
                Prompt::Text(text) => counted.texts.push(Cow::Borrowed(text.as_ref())),
                Prompt::Tokens(tokens) => counted.media_tokens = counted.media_tokens.saturating_add(*tokens),
            }
        }
        counted.members(&self.members, is_no_prompt);
        counted
    }

    /// All features of the request that cost more than its tokens.
    #[must_use]
    pub fn costly_features(&self, provider: ProviderType) -> Vec<Feature> {
        // All answers that are written are held for.
        let features = costly_members(&self.members, provider).into_iter();
        features.filter(|feature| feature.name != "best_of").collect()
    }

    /// The call for a server of the same API. All of the client's body stays as it was sent, byte for byte, but for the
    /// value of `model`, usage, which is always asked for in streams, `ragmux`, which is removed, and an output bound
    /// that must be kept.
    ///
    /// # Errors
    /// [`UpstreamError::Unfit`] for answers that begin with what cannot be told from what the model wrote, where that has
    /// a bound that must be kept.
    pub(crate) fn call(&self, outgoing: &Outgoing<'_>) -> Result<ChatCall, UpstreamError> {
        let repeats = Repeats::of(self);
        if outgoing.output_bound.is_some() && self.echo && !repeats.is_known() {
            return Err(UpstreamError::Unfit(RequestError::Invalid {
                field: "echo".to_owned(),
                must: "false for token numbers, and for prompts of more than 1 MiB, where the project keeps its bounds",
            }));
        }
        let (mut splices, mut added) = (Splices::default(), Vec::new());
        match self.members.get("model") {
            Some(value) => splices.replace(span(self.text, value.get()), literal(outgoing.model)),
            None => added.push(format!("\"model\":{}", literal(outgoing.model))),
        }
        if self.stream {
            ask_for_usage(self.text, &self.members, &mut splices, &mut added);
        }
        if let Some(bound) = outgoing.output_bound {
            self.put_limits(&bound, &mut splices, &mut added);
        }
        let removed = self.members.ranges_without(self.text, "ragmux");
        // A comma after what is added is right unless nothing of the client's is left.
        let is_all = self.members.iter().all(|(name, _)| name == "ragmux");
        removed.into_iter().for_each(|range| splices.remove(range));
        if !added.is_empty() {
            let mut text = added.join(",");
            if !is_all {
                text.push(',');
            }
            splices.insert(self.members.inside(self.text), text);
        }
        Ok(ChatCall {
            body: Bytes::from(splices.apply(self.text.as_bytes())),
            stream: self.stream,
            rules: self.rules(outgoing, repeats),
            dropped: Vec::new(),
            client: ClientDialect::Completions,
            upstream: UpstreamDialect::Completions,
            headers: HeaderMap::new(),
        })
    }

    fn rules(&self, outgoing: &Outgoing<'_>, repeats: Repeats) -> SpliceRules {
        // What is shown may be as long as the bound allows so many answers to be, of all that are written.
        let shown = |bound: OutputBound| OutputBound {
            tokens: self.each(&bound).saturating_mul(self.n).saturating_mul(self.prompts.len() as u64),
            ..bound
        };
        SpliceRules {
            strip_usage: self.stream && !self.include_usage,
            bound: outgoing.output_bound.map(shown),
            member: None,
            repeats: Some(Arc::new(repeats)),
            ..SpliceRules::of(outgoing, self.stream)
        }
    }

    /// The bound of one answer.
    fn each(&self, bound: &OutputBound) -> u64 {
        (bound.tokens / self.answers().max(1)).max(1)
    }

    /// Lowers every limit above our bound, and adds the bound under its field where that is absent.
    fn put_limits(&self, bound: &OutputBound, splices: &mut Splices, added: &mut Vec<String>) {
        let each = self.each(bound);
        // The API has no other of its own; a connection may have one of its server's.
        let field = if SERVER_OUTPUT_FIELDS.contains(&bound.field) { bound.field } else { MAX_TOKENS };
        for name in SERVER_OUTPUT_FIELDS.into_iter().chain([MAX_TOKENS]) {
            match self.members.get(name) {
                Some(value) if value.get() == "null" && name != field => {}
                Some(value) if value.get().parse::<u64>().is_ok_and(|given| given <= each) => {}
                Some(value) => splices.replace(span(self.text, value.get()), each.to_string()),
                None if name == field => added.push(format!("\"{name}\":{each}")),
                None => {}
            }
        }
    }
}

/// Members that no server makes prompt of, and the prompt itself.
fn is_no_prompt(name: &str) -> bool {
    is_setting(name) || matches!(name, "prompt" | "best_of" | "echo")
}

fn prompts<'a>(value: Option<&'a RawValue>) -> Result<Vec<Prompt<'a>>, RequestError> {
    let invalid = || RequestError::Invalid { field: "prompt".to_owned(), must: MUST };
    let Some(value) = value else { return Ok(vec![Prompt::Tokens(1)]) };
    match value.get().as_bytes() {
        [b'"', ..] => Ok(vec![Prompt::Text(text_at(value, || "prompt".to_owned(), MUST)?)]),
        [b'[', ..] => {
            if let Some(tokens) = token_count(value.get()) {
                return if tokens > 0 {
                    Ok(vec![Prompt::Tokens(tokens)])
                } else {
                    Err(RequestError::Missing("prompt"))
                };
            }
            let list = elements(value.get()).map_err(|_| invalid())?;
            if list.len() > MAX_ITEMS {
                let must = "at most 65536 prompts";
                return Err(RequestError::Invalid { field: "prompt".to_owned(), must });
            }
            let one = |(at, value): (usize, &'a RawValue)| match value.get().starts_with('"') {
                true => text_at(value, || format!("prompt[{at}]"), MUST).map(Prompt::Text),
                false => token_count(value.get()).map(Prompt::Tokens).ok_or_else(invalid),
            };
            list.into_iter().enumerate().map(one).collect()
        }
        _ => Err(invalid()),
    }
}
