//! Embedding requests: the client's own, passed through, and ours for documents and queries.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::request::{RequestError, optional_text, text_at};
use super::strict::read_body;
use crate::client::EmbeddingsCall;
use crate::json::{Members, Splices, elements, literal, span, text_of};

/// More than any provider takes in one call.
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
/// `encoding_format` goes upstream exactly as sent, absence included, and the answer comes back unchanged.
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
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            input: input(value)?,
            dimensions,
            user: members.present("user").and_then(text_of),
            metadata: members.present("metadata"),
            text,
            members,
        })
    }

    /// The call for a connection: the client's bytes with the model's name replaced and `ragmux` removed.
    #[must_use]
    pub fn call(&self, model: &str, public_model: &str) -> EmbeddingsCall {
        let mut splices = Splices::default();
        match self.members.get("model") {
            Some(value) => splices.replace(span(self.text, value.get()), literal(model)),
            None => splices.insert(self.members.inside(self.text), format!("\"model\":{},", literal(model))),
        }
        for range in self.members.ranges_without(self.text, "ragmux") {
            splices.remove(range);
        }
        EmbeddingsCall { body: Bytes::from(splices.apply(self.text.as_bytes())), public_model: public_model.to_owned() }
    }
}

fn invalid(field: &str, must: &'static str) -> RequestError {
    RequestError::Invalid { field: field.to_owned(), must }
}

fn input<'a>(value: &'a RawValue) -> Result<EmbeddingInput<'a>, RequestError> {
    const MUST: &str = "a string, an array of strings, an array of token numbers or an array of those";
    if value.get().starts_with('"') {
        return Ok(EmbeddingInput::Texts(vec![text_at(value, || "input".to_owned(), MUST)?]));
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
        return list.iter().enumerate().map(text).collect::<Result<_, _>>().map(EmbeddingInput::Texts);
    }
    if first.get().starts_with('[') {
        let lengths = list.iter().map(|tokens| token_count(tokens.get())).collect::<Option<Vec<_>>>();
        return lengths.map(EmbeddingInput::Tokens).ok_or_else(|| invalid("input", MUST));
    }
    let count = token_count(value.get()).ok_or_else(|| invalid("input", MUST))?;
    Ok(EmbeddingInput::Tokens(vec![count]))
}

fn token_count(text: &str) -> Option<usize> {
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
        let call = EmbeddingsRequest::parse(body.as_bytes()).unwrap().call("real", "asked");
        assert_eq!(call.body, body.replace("\"asked\"", "\"real\""));
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
