//! Embedding requests: the client's own, passed through, and ours for documents and queries.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use domain::ProviderType;
use serde_json::value::RawValue;

use super::batches::{EmbeddingsCall, EmbeddingsPart, Encoding, Limits, Size};
use super::request::{RequestError, optional_text, text_at};
use super::strict::read_body;
use crate::dialect::embeddings::EmbeddingsDialect;
use crate::json::{Members, Splices, elements, literal, span, text_of};

/// Where a call goes, below the connection's base URL.
pub(crate) const EMBEDDINGS_PATH: &str = "embeddings";

/// More than any provider takes in one call; a bound of ours, for what is read of an input takes memory too.
const MAX_INPUTS: usize = 65_536;

/// What is to be embedded.
#[derive(Clone, Debug)]
pub enum EmbeddingInput<'a> {
    /// One text or several.
    Texts(Vec<Cow<'a, str>>),
    /// Arrays of token numbers, by their lengths.
    Tokens(Vec<usize>),
}

/// A client's embeddings request. Everything it does not name is kept in the body it borrows from;
/// `encoding_format` goes upstream exactly as sent, absence included, and the answer comes back unchanged where it is in
/// that form.
#[derive(Clone, Debug)]
pub struct EmbeddingsRequest<'a> {
    /// The model name asked for; empty when none is given.
    pub model: Cow<'a, str>,
    /// What is to be embedded; at least one input.
    pub input: EmbeddingInput<'a>,
    /// The width asked for.
    pub dimensions: Option<u64>,
    /// `user` where it is a string.
    pub user: Option<Cow<'a, str>>,
    /// `metadata` as sent. The API has it for chats only; servers and clients that have it here too mean the same.
    pub metadata: Option<&'a RawValue>,
    /// The inputs as sent, where they are elements of an array.
    items: Vec<&'a RawValue>,
    text: &'a str,
    pub(super) members: Members<'a>,
}

impl<'a> EmbeddingsRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        let (text, members) = read_body(body)?;
        let value = members.present("input").ok_or(RequestError::Missing("input"))?;
        let dimensions = match members.present("dimensions").map(|value| value.get().parse::<u64>()) {
            None => None,
            Some(Ok(width)) if width > 0 => Some(width),
            Some(_) => return Err(invalid("dimensions", "a whole number above zero")),
        };
        let (input, items) = input(value)?;
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            input,
            items,
            dimensions,
            user: members.present("user").and_then(text_of),
            metadata: members.present("metadata"),
            text,
            members,
        })
    }

    /// The call for a connection: the client's bytes with the model's name replaced and `ragmux` removed, in as many
    /// parts as the provider's limits ask for.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for numbers of tokens where the provider takes texts only.
    pub fn call(
        &self,
        provider: ProviderType,
        model: &str,
        public_model: &str,
    ) -> Result<EmbeddingsCall, RequestError> {
        let limits = Limits::of(provider);
        let sizes: Vec<Size<'_>> = match &self.input {
            EmbeddingInput::Texts(texts) => texts.iter().map(|text| Size::Text(text)).collect(),
            EmbeddingInput::Tokens(_) if !limits.takes_tokens => {
                return Err(invalid("input", "text: the model's provider does not take numbers of tokens"));
            }
            EmbeddingInput::Tokens(counts) => counts.iter().map(|count| Size::Tokens(*count as u64)).collect(),
        };
        let dialect = EmbeddingsDialect::of(provider);
        let parts = match limits.split(&sizes).as_slice() {
            ranges if dialect != EmbeddingsDialect::OpenAi => {
                let texts = match &self.input {
                    EmbeddingInput::Texts(texts) => texts.iter().map(AsRef::as_ref).collect(),
                    EmbeddingInput::Tokens(_) => Vec::new(),
                };
                let part = |range: &Range<usize>| {
                    let texts = texts.get(range.clone()).unwrap_or_default();
                    let body = dialect.body(model, texts, self.dimensions).unwrap_or_default();
                    EmbeddingsPart { body, inputs: range.len() }
                };
                ranges.iter().map(part).collect()
            }
            [] | [_] => vec![EmbeddingsPart { body: self.body(provider, model, None), inputs: sizes.len() }],
            ranges => {
                let part = |range: &Range<usize>| EmbeddingsPart {
                    body: self.body(provider, model, self.items.get(range.clone())),
                    inputs: range.len(),
                };
                ranges.iter().map(part).collect()
            }
        };
        let encoding = match self.members.present("encoding_format") {
            None => Some(Encoding::Float),
            Some(value) => text_of(value).and_then(|name| Encoding::named(&name)),
        };
        Ok(EmbeddingsCall::new(parts, public_model, encoding))
    }

    fn body(&self, provider: ProviderType, model: &str, items: Option<&[&RawValue]>) -> Bytes {
        let mut splices = Splices::default();
        let mut added = Vec::new();
        match self.members.get("model") {
            Some(value) => splices.replace(span(self.text, value.get()), literal(model)),
            None => added.push(format!("\"model\":{},", literal(model))),
        }
        for range in self.members.ranges_without(self.text, "ragmux") {
            splices.remove(range);
        }
        if provider == ProviderType::Mistral
            && let Some(width) = self.members.present("dimensions")
        {
            // Its name there (Mistral API reference, Embeddings); a name that is not there is refused.
            for range in self.members.ranges_without(self.text, "dimensions") {
                splices.remove(range);
            }
            added.push(format!("\"output_dimension\":{},", width.get()));
        }
        if let (Some(items), Some(value)) = (items, self.members.get("input")) {
            let items: Vec<&str> = items.iter().map(|item| item.get()).collect();
            splices.replace(span(self.text, value.get()), format!("[{}]", items.join(",")));
        }
        if !added.is_empty() {
            // `input` is always there, so a comma is always right.
            splices.insert(self.members.inside(self.text), added.concat());
        }
        Bytes::from(splices.apply(self.text.as_bytes()))
    }
}

fn invalid(field: &str, must: &'static str) -> RequestError {
    RequestError::Invalid { field: field.to_owned(), must }
}

/// What is to be embedded, and each of several inputs as sent.
fn input<'a>(value: &'a RawValue) -> Result<(EmbeddingInput<'a>, Vec<&'a RawValue>), RequestError> {
    const MUST: &str = "a string, an array of strings, an array of token numbers or an array of those";
    if value.get().starts_with('"') {
        let text = text_at(value, || "input".to_owned(), MUST)?;
        return Ok((EmbeddingInput::Texts(vec![text]), Vec::new()));
    }
    let list = elements(value.get()).map_err(|_| invalid("input", MUST))?;
    if list.len() > MAX_INPUTS {
        return Err(invalid("input", "at most 65536 inputs"));
    }
    let first = list.first().ok_or(RequestError::Missing("input"))?;
    if first.get().starts_with('"') {
        let text = |(at, value): (usize, &&'a RawValue)| match value.get().starts_with('"') {
            true => text_at(value, || format!("input[{at}]"), MUST),
            false => Err(invalid("input", MUST)),
        };
        let texts = list.iter().enumerate().map(text).collect::<Result<_, _>>()?;
        return Ok((EmbeddingInput::Texts(texts), list));
    }
    if first.get().starts_with('[') {
        let lengths = list.iter().map(|tokens| token_count(tokens.get())).collect::<Option<Vec<_>>>();
        let lengths = lengths.ok_or_else(|| invalid("input", MUST))?;
        return Ok((EmbeddingInput::Tokens(lengths), list));
    }
    let count = token_count(value.get()).ok_or_else(|| invalid("input", MUST))?;
    Ok((EmbeddingInput::Tokens(vec![count]), Vec::new()))
}

/// The length of a text that is an array of token numbers.
pub(crate) fn token_count(text: &str) -> Option<usize> {
    serde_json::from_str::<Vec<u64>>(text).ok().map(|tokens| tokens.len())
}

/// The body of a call of ours. The encoding is left to the server's default: a field we add is one more that a server
/// or a proxy in front of it may not know.
pub(crate) fn own_embeddings_body(
    model: &str,
    inputs: &[String],
    dimensions: Option<u32>,
) -> Result<Bytes, serde_json::Error> {
    #[derive(serde::Serialize)]
    struct Body<'a> {
        model: &'a str,
        input: &'a [String],
        #[serde(skip_serializing_if = "Option::is_none")]
        dimensions: Option<u32>,
    }
    serde_json::to_vec(&Body { model, input: inputs, dimensions }).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &str) -> Result<String, String> {
        let body = format!(r#"{{"model":"m","input":{input}}}"#);
        EmbeddingsRequest::parse(body.as_bytes())
            .map(|request| format!("{:?}", request.input))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn texts_and_tokens_are_accepted_one_or_many() {
        for (input, read) in [
            (r#""a\n""#, r#"Texts(["a\n"])"#),
            (r#"["a","b"]"#, r#"Texts(["a", "b"])"#),
            ("[1,2,3]", "Tokens([3])"),
            ("[[1,2],[3]]", "Tokens([2, 1])"),
        ] {
            assert_eq!(parse(input).as_deref(), Ok(read));
        }
        for input in ["7", "{}", r#"["a",1]"#, r#"[1,"a"]"#, "[[1],2]", "[-1]"] {
            assert!(parse(input).unwrap_err().starts_with("input must be a string"), "{input}");
        }
        let many = format!("[{}]", vec!["\"\""; MAX_INPUTS + 1].join(","));
        assert_eq!(parse(&many).unwrap_err(), "input must be at most 65536 inputs");
        assert_eq!(parse("[]").unwrap_err(), "input is required");
        for (input, field) in [(r#""\ud800""#, "input"), (r#"["a","\ud83d"]"#, "input[1]")] {
            let said = format!("{field} has an invalid Unicode escape: a surrogate that is not one of a pair");
            assert_eq!(parse(input).unwrap_err(), said);
        }
        assert_eq!(parse("null").unwrap_err(), "input is required");
    }

    #[test]
    fn the_body_is_passed_on_with_only_the_model_replaced() {
        let body = r#"{"input":["a"], "model" : "asked","encoding_format":"base64","dimensions":256,"x":1.0}"#;
        let call =
            EmbeddingsRequest::parse(body.as_bytes()).unwrap().call(ProviderType::OpenAi, "real", "asked").unwrap();
        assert_eq!(bodies(&call), [body.replace("\"asked\"", "\"real\"")]);
    }

    fn bodies(call: &EmbeddingsCall) -> Vec<String> {
        call.parts().iter().map(|part| String::from_utf8(part.body.to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_call_that_a_provider_does_not_take_whole_goes_in_parts() {
        let call = |provider, inputs: Vec<String>| {
            let body = format!(r#"{{"encoding_format":"base64","input" : [{}], "x":1}}"#, inputs.join(" , "));
            bodies(&EmbeddingsRequest::parse(body.as_bytes()).unwrap().call(provider, "m", "asked").unwrap())
        };
        let texts = |count: usize| (0..count).map(|number| format!("\"t{number}\"")).collect::<Vec<_>>();
        let parts = call(ProviderType::OpenAi, texts(2049));
        assert_eq!(parts.len(), 2);
        assert!(parts[0].starts_with(r#"{"model":"m","encoding_format":"base64","input" : ["t0","t1","#));
        assert_eq!(parts[1], r#"{"model":"m","encoding_format":"base64","input" : ["t2048"], "x":1}"#);
        assert_eq!(call(ProviderType::OpenAi, texts(2048)).len(), 1);
        assert_eq!(call(ProviderType::Mistral, texts(513)).len(), 3);
        // By tokens: three of 8000 do not fit into 16384.
        let long = format!("\"{}\"", "word ".repeat(6000));
        let parts = call(ProviderType::Mistral, vec![long; 4]);
        assert_eq!(parts.len(), 2);
        let numbers = format!("[{}]", vec!["7"; 150_000].join(","));
        assert_eq!(call(ProviderType::OpenAi, vec![numbers; 3]).len(), 2);
    }

    #[test]
    fn a_provider_of_texts_gets_no_numbers_and_the_width_by_its_name() {
        let call =
            |provider, body: &str| EmbeddingsRequest::parse(body.as_bytes()).unwrap().call(provider, "m", "asked");
        for body in [r#"{"input":[1,2]}"#, r#"{"input":[[1],[2]]}"#] {
            let refused = call(ProviderType::Mistral, body).unwrap_err();
            assert_eq!(refused.param(), Some("input"));
            assert!(call(ProviderType::OpenAi, body).is_ok());
        }
        let sent = call(ProviderType::Mistral, r#"{"dimensions":8,"model":"asked","input":"a"}"#).unwrap();
        assert_eq!(bodies(&sent), [r#"{"output_dimension":8,"model":"m","input":"a"}"#]);
    }

    #[test]
    fn our_own_body_adds_nothing_that_was_not_asked_for() {
        let inputs = ["a\"b".to_owned()];
        assert_eq!(own_embeddings_body("m", &inputs, None).unwrap(), r#"{"model":"m","input":["a\"b"]}"#);
        assert_eq!(
            own_embeddings_body("m", &inputs, Some(8)).unwrap(),
            r#"{"model":"m","input":["a\"b"],"dimensions":8}"#
        );
    }
}
