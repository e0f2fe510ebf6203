//! Embeddings calls that a provider does not take whole: split by its limits, sent part after part, and put together so
//! that the client cannot tell.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::ProviderType;
use serde_json::value::RawValue;

use super::answer::{splice_model, spliced, success};
use crate::dialect::gemini;
use crate::error::UpstreamError;
use crate::json::{Members, Splices, elements, literal, object, span, text_of};
use crate::usage::Usage;

/// The most bytes of an answer that is put together: a bound of ours, that of one in one piece.
const MAX_MERGED_BYTES: u64 = 256 * 1024 * 1024;

/// How large an input is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size<'a> {
    Text(&'a str),
    Tokens(u64),
}

/// What a provider takes in one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    inputs: usize,
    /// Of all inputs together.
    tokens: Option<u64>,
    /// Whether inputs may be numbers of tokens.
    pub(super) takes_tokens: bool,
}

impl Limits {
    pub(super) fn of(provider: ProviderType) -> Self {
        match provider {
            // OpenAI API reference, Create embeddings.
            ProviderType::OpenAi => Self { inputs: 2048, tokens: Some(300_000), takes_tokens: true },
            // Not in its reference. The tokens are what its API names in its refusals ("Max is 16384"); of more inputs
            // than 256 it says that they are too many (code 3210).
            ProviderType::Mistral => Self { inputs: 256, tokens: Some(16_384), takes_tokens: false },
            ProviderType::Gemini => Self { inputs: gemini::MOST_TEXTS, tokens: None, takes_tokens: false },
            // A cautious bound of ours, OpenAI's: the API names none (Ollama API, Generate embeddings), and a call of
            // any size would be one answer of any size.
            ProviderType::Ollama => Self { inputs: 2048, tokens: None, takes_tokens: false },
            // Azure OpenAI, How to generate embeddings, Best practices. For OpenRouter and servers that imitate OpenAI
            // it is a cautious bound of ours: they have none in common, and who takes OpenAI's clients takes as much.
            _ => Self { inputs: 2048, tokens: None, takes_tokens: true },
        }
    }

    /// The inputs of each part, in their order. Tokens of texts are estimated, with a fifth to spare; an input that is
    /// too large by itself is left to the provider to refuse.
    pub(super) fn split(&self, sizes: &[Size<'_>]) -> Vec<Range<usize>> {
        // A token has at least one byte.
        let most: u64 = sizes.iter().map(Size::at_most).sum();
        let limit = self.tokens.filter(|limit| most > *limit);
        let (mut parts, mut start, mut tokens) = (Vec::new(), 0, 0_u64);
        for (at, size) in sizes.iter().enumerate() {
            let own = if limit.is_some() { size.tokens() } else { 0 };
            let is_full = at - start >= self.inputs || limit.is_some_and(|limit| tokens.saturating_add(own) > limit);
            if is_full && at > start {
                parts.push(start..at);
                (start, tokens) = (at, 0);
            }
            tokens = tokens.saturating_add(own);
        }
        parts.push(start..sizes.len());
        parts
    }
}

impl Size<'_> {
    fn at_most(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Tokens(count) => *count,
        }
    }

    fn tokens(&self) -> u64 {
        match self {
            Self::Text(text) => (tokens::estimate(text) as u64).saturating_mul(6).div_ceil(5),
            Self::Tokens(count) => *count,
        }
    }
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// As an array of numbers.
    Float,
    /// As base64 of little-endian 32-bit floats.
    Base64,
}

impl Encoding {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "float" => Some(Self::Float),
            "base64" => Some(Self::Base64),
            _ => None,
        }
    }

    /// A vector in this form, if it is in the other. Nothing is lost: a number is written with as many digits as tell it
    /// from all other 32-bit floats.
    fn of_other(self, vector: &RawValue) -> Option<String> {
        match (self, text_of(vector)) {
            (Self::Float, Some(encoded)) => {
                let bytes = STANDARD.decode(encoded.as_bytes()).ok()?;
                let (floats, rest) = bytes.as_chunks::<4>();
                let floats = floats.iter().map(|bytes| f32::from_le_bytes(*bytes));
                if !rest.is_empty() || floats.clone().any(|float| !float.is_finite()) {
                    return None;
                }
                serde_json::to_string(&floats.collect::<Vec<f32>>()).ok()
            }
            (Self::Base64, None) => {
                let numbers = elements(vector.get()).ok()?;
                let mut bytes = Vec::with_capacity(numbers.len() * 4);
                for number in numbers {
                    // Straight from its digits: by way of 64 bits it could be rounded twice.
                    let float: f32 = number.get().parse().ok().filter(|float: &f32| float.is_finite())?;
                    bytes.extend_from_slice(&float.to_le_bytes());
                }
                Some(literal(&STANDARD.encode(bytes)))
            }
            (Self::Float, None) | (Self::Base64, Some(_)) => None,
        }
    }
}

/// One call to the provider.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddingsPart {
    pub(crate) body: Bytes,
    /// How many vectors it asks for.
    pub(crate) inputs: usize,
}

/// A client's embeddings call made ready by [`crate::EmbeddingsRequest::call`].
#[derive(Clone, Debug)]
pub struct EmbeddingsCall {
    parts: Vec<EmbeddingsPart>,
    public_model: String,
    /// `None` for one that is not known here: then vectors stay as they come.
    encoding: Option<Encoding>,
    /// What the prompt has by the caller's count.
    counted: Option<u64>,
}

impl EmbeddingsCall {
    pub(super) fn new(parts: Vec<EmbeddingsPart>, public_model: &str, encoding: Option<Encoding>) -> Self {
        Self { parts, public_model: public_model.to_owned(), encoding, counted: None }
    }

    /// Has a client that expects usage told this many tokens by an API that tells none itself.
    #[must_use]
    pub fn counted(self, tokens: u64) -> Self {
        Self { counted: Some(tokens), ..self }
    }

    pub(crate) fn parts(&self) -> &[EmbeddingsPart] {
        &self.parts
    }
}

/// Puts the answers to the parts of a call together.
#[derive(Debug)]
pub(crate) struct Merge {
    public_model: String,
    encoding: Option<Encoding>,
    counted: Option<u64>,
    /// How many vectors each part asks for.
    inputs: Vec<usize>,
    answers: Vec<Bytes>,
    /// The vectors of parts, numbered through.
    items: Vec<String>,
    bytes: u64,
}

impl Merge {
    pub(crate) fn new(call: &EmbeddingsCall) -> Self {
        Self {
            public_model: call.public_model.clone(),
            encoding: call.encoding,
            counted: call.counted,
            inputs: call.parts.iter().map(|part| part.inputs).collect(),
            answers: Vec::new(),
            items: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether a call of another provider's asks for the same in the same parts.
    pub(crate) fn fits(&self, call: &EmbeddingsCall) -> bool {
        self.inputs.iter().copied().eq(call.parts.iter().map(|part| part.inputs))
    }

    /// How many parts are answered.
    pub(crate) fn taken(&self) -> usize {
        self.answers.len()
    }

    /// Takes the answer to the next part. Gives what was reported for it.
    ///
    /// # Errors
    /// It is none, or has other vectors than were asked for.
    pub(crate) fn take(
        &mut self,
        part: &EmbeddingsPart,
        answer: Bytes,
        credential: Option<&str>,
    ) -> Result<Option<Usage>, UpstreamError> {
        let (_, members) = success(&answer, credential)?;
        let used = members.present("usage").and_then(Usage::read_believed);
        let data = members.present("data").ok_or(UpstreamError::BadAnswer("it has no data"))?;
        if self.inputs.len() > 1 {
            self.number(part, data)?;
        }
        self.answers.push(answer);
        Ok(used)
    }

    /// Renumbers the vectors of a part.
    fn number(&mut self, part: &EmbeddingsPart, data: &RawValue) -> Result<(), UpstreamError> {
        let items = elements(data.get()).map_err(|_| UpstreamError::BadAnswer("its data are not embeddings"))?;
        if items.len() != part.inputs {
            return Err(UpstreamError::BadAnswer("it has more or fewer embeddings than inputs"));
        }
        let before = self.items.len();
        let mut places: Vec<Option<String>> = vec![None; items.len()];
        for (at, item) in items.into_iter().enumerate() {
            let members =
                Members::parse(item.get()).map_err(|_| UpstreamError::BadAnswer("its data are not embeddings"))?;
            let index = members.present("index");
            let own = index.map_or(Some(at), |index| index.get().parse().ok());
            let Some((own, place @ None)) = own.and_then(|own| Some((own, places.get_mut(own)?))) else {
                return Err(UpstreamError::BadAnswer("its embeddings are numbered wrongly"));
            };
            let mut splices = Splices::default();
            match members.get("index") {
                Some(index) => splices.replace(span(item.get(), index.get()), (before + own).to_string()),
                None => {
                    let comma = if members.is_empty() { "" } else { "," };
                    splices.insert(members.inside(item.get()), format!("\"index\":{}{comma}", before + own));
                }
            }
            self.encode(item.get(), &members, &mut splices);
            let text = String::from_utf8(splices.apply(item.get().as_bytes())).unwrap_or_default();
            self.bytes += text.len() as u64;
            *place = Some(text);
        }
        if self.bytes > MAX_MERGED_BYTES {
            return Err(UpstreamError::TooLarge { limit_bytes: MAX_MERGED_BYTES });
        }
        self.items.extend(places.into_iter().flatten());
        Ok(())
    }

    /// Brings the vector of an item into the form that was asked for, where it is in the other.
    fn encode(&self, text: &str, item: &Members<'_>, splices: &mut Splices) {
        let vector = item.present("embedding");
        if let Some((encoding, vector)) = self.encoding.zip(vector)
            && let Some(encoded) = encoding.of_other(vector)
        {
            splices.replace(span(text, vector.get()), encoded);
        }
    }

    /// The whole answer: the provider's bytes with the model's name replaced and, of several, the first one's with all
    /// vectors and the sum of what was used. One that was not written by a provider (`is_ours`) tells usage in any case:
    /// client libraries read it unasked.
    pub(crate) fn finish(&self, is_ours: bool) -> Result<Bytes, UpstreamError> {
        let first = self.answers.first().ok_or(UpstreamError::BadAnswer("there is none"))?;
        let (text, members) = object(first).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
        let mut splices = Splices::default();
        splice_model(&mut splices, text, &members, &self.public_model);
        let data = members.present("data").ok_or(UpstreamError::BadAnswer("it has no data"))?;
        let mut tells_usage = members.present("usage").is_some();
        if self.answers.len() > 1 {
            splices.replace(span(text, data.get()), format!("[{}]", self.items.join(",")));
            tells_usage = self.sum_usage(text, &members, &mut splices)?;
        } else {
            for item in elements(data.get()).unwrap_or_default() {
                if let Ok(members) = Members::parse(item.get()) {
                    self.encode(text, &members, &mut splices);
                }
            }
        }
        if let Some((tokens, end)) = self.counted.zip(text.rfind('}')).filter(|_| is_ours && !tells_usage) {
            // There are data, so a comma is right.
            splices.insert(end, format!(",\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}"));
        }
        Ok(spliced(first, splices))
    }

    /// Adds up every number of `usage`; where a part tells none, nobody knows the sum. Whether it is known.
    fn sum_usage(&self, text: &str, first: &Members<'_>, splices: &mut Splices) -> Result<bool, UpstreamError> {
        let mut all = Vec::with_capacity(self.answers.len());
        for answer in &self.answers {
            let (_, members) = object(answer).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
            all.extend(members.present("usage").and_then(|usage| Members::parse(usage.get()).ok()));
        }
        if all.len() < self.answers.len() {
            for range in first.ranges_without(text, "usage") {
                splices.remove(range);
            }
            return Ok(false);
        }
        for (name, value) in all.first().iter().flat_map(|usage| usage.iter()) {
            let number = |value: &RawValue| value.get().parse::<u64>().ok();
            if number(value).is_some() {
                let numbers = all.iter().filter_map(|usage| number(usage.get(name)?));
                let sum = numbers.fold(0, u64::saturating_add);
                splices.replace(span(text, value.get()), sum.to_string());
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
#[path = "batches_tests.rs"]
mod tests;
