//! Moderation requests, passed through (OpenAI API reference, Moderations).

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::request::{MAX_ITEMS, RequestError, optional_text, text_at};
use super::strict::{read_known, strict};
use crate::json::{Members, elements};
use crate::single::{Reading, SingleCall, with_model};

const MUST: &str = "a string, an array of strings or an array of parts";

/// A client's moderation request. Everything it does not name is kept in the body it borrows from.
#[derive(Clone, Debug)]
pub struct ModerationRequest<'a> {
    /// The model name asked for; empty when none is given.
    pub model: Cow<'a, str>,
    /// The texts to be judged.
    pub texts: Vec<Cow<'a, str>>,
    /// How many pictures are to be judged.
    pub images: usize,
    /// `user` where it is a string.
    pub user: Option<Cow<'a, str>>,
    /// `metadata` as sent, for tags.
    pub metadata: Option<&'a RawValue>,
    text: &'a str,
    members: Members<'a>,
}

impl<'a> ModerationRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        let (text, members) = read_known(body, &["model", "input", "user", "metadata", "ragmux"])?;
        let input = members.present("input").ok_or(RequestError::Missing("input"))?;
        let (mut texts, mut images) = (Vec::new(), 0);
        if input.get().starts_with('[') {
            let list = elements(input.get()).map_err(|_| invalid("input", MUST))?;
            if list.is_empty() {
                return Err(RequestError::Missing("input"));
            }
            if list.len() > MAX_ITEMS {
                return Err(invalid("input", "at most 65536 inputs"));
            }
            for (at, raw) in list.into_iter().enumerate() {
                match part(at, raw)? {
                    Some(text) => texts.push(text),
                    None => images += 1,
                }
            }
        } else {
            texts.push(text_at(input, || "input".to_owned(), MUST)?);
        }
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            texts,
            images,
            user: members.present("user").and_then(crate::json::text_of),
            metadata: members.present("metadata"),
            text,
            members,
        })
    }

    /// The call for a connection: the client's bytes with the model's name replaced and `ragmux` removed.
    #[must_use]
    pub fn call(&self, model: &str, public_model: &str) -> SingleCall {
        SingleCall {
            body: with_model(self.text, &self.members, model),
            dropped: Vec::new(),
            path: "moderations",
            reading: Reading::Passed {
                public_model: public_model.to_owned(),
                member: "results",
                without: "it has no results",
            },
        }
    }
}

/// The text of an input or part; none for a picture.
fn part<'a>(at: usize, raw: &'a RawValue) -> Result<Option<Cow<'a, str>>, RequestError> {
    let path = || format!("input[{at}]");
    if raw.get().starts_with('"') {
        return text_at(raw, path, MUST).map(Some);
    }
    let members = Members::parse(raw.get()).map_err(|_| invalid(path(), "a string or a part"))?;
    let members = strict(&path(), members, &["type", "text", "image_url"])?;
    let kind = members.present("type").ok_or_else(|| invalid(format!("input[{at}].type"), "text or image_url"))?;
    let text = |name: &str| members.present(name).ok_or_else(|| invalid(format!("input[{at}].{name}"), "there"));
    match text_at(kind, || format!("input[{at}].type"), "text or image_url")?.as_ref() {
        "text" => text_at(text("text")?, || format!("input[{at}].text"), "a string").map(Some),
        "image_url" => text("image_url").map(|_| None),
        _ => Err(invalid(format!("input[{at}].type"), "text or image_url")),
    }
}

fn invalid(field: impl Into<String>, must: &'static str) -> RequestError {
    RequestError::Invalid { field: field.into(), must }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &str) -> Result<(Vec<String>, usize), String> {
        let body = format!(r#"{{"model":"m","input":{input}}}"#);
        let request = ModerationRequest::parse(body.as_bytes()).map_err(|error| error.to_string())?;
        Ok((request.texts.into_iter().map(Cow::into_owned).collect(), request.images))
    }

    #[test]
    fn texts_and_pictures_are_accepted_one_or_many() {
        assert_eq!(read(r#""a\n""#), Ok((vec!["a\n".to_owned()], 0)));
        assert_eq!(read(r#"["a","b"]"#), Ok((vec!["a".to_owned(), "b".to_owned()], 0)));
        let parts =
            r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"https://x.example/a.png"}}]"#;
        assert_eq!(read(parts), Ok((vec!["a".to_owned()], 1)));
        for (input, said) in [
            ("null", "input is required"),
            ("[]", "input is required"),
            ("7", "input must be a string, an array of strings or an array of parts"),
            ("[7]", "input[0] must be a string or a part"),
            (r#"[{"text":"a"}]"#, "input[0].type must be text or image_url"),
            (r#"[{"type":"audio"}]"#, "input[0].type must be text or image_url"),
            (r#"[{"type":"text"}]"#, "input[0].text must be there"),
            (r#"[{"type":"text","text":7}]"#, "input[0].text must be a string"),
        ] {
            assert_eq!(read(input).unwrap_err(), said, "{input}");
        }
    }

    #[test]
    fn the_body_is_passed_on_with_only_the_model_replaced() {
        let body = r#"{"input":["a"], "model" : "asked","x":1.0}"#;
        let call = ModerationRequest::parse(body.as_bytes()).unwrap().call("real", "asked");
        assert_eq!(call.body, body.replace("\"asked\"", "\"real\""));
        let without = ModerationRequest::parse(br#"{"ragmux":{},"input":"a"}"#).unwrap().call("real", "asked");
        assert_eq!(without.body, r#"{"model":"real","input":"a"}"#);
    }
}
