//! JSON answers: the provider's bytes with the model's name replaced, and what was read from them on the way.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::stream::Delivered;
use super::truncate::truncate;
use super::{SpliceRules, in_body};
use crate::error::UpstreamError;
use crate::json::{Members, Splices, elements, literal, object, span, text_of};
use crate::memory::Owner;
use crate::usage::Usage;

/// A whole chat answer.
#[derive(Clone, Debug)]
pub struct ChatAnswer {
    /// What the client gets.
    pub body: Bytes,
    /// What the provider reported, unless it cannot be true.
    pub usage: Option<Usage>,
    /// The `finish_reason` of each choice that has one.
    pub finish_reasons: Vec<String>,
    /// The text of all choices, for estimates.
    pub delivered: Delivered,
    /// The tokens of that text, where the output is bounded.
    pub counted_output: Option<u64>,
    /// The model named by the provider.
    pub upstream_model: Option<String>,
}

impl ChatAnswer {
    /// Adds a top-level member of ours to the answer. `value` must be JSON.
    pub fn add_member(&mut self, name: &str, value: &str) {
        let Some(end) = self.body.iter().rposition(|byte| *byte == b'}') else { return };
        let mut splices = Splices::default();
        // An answer has choices, so a comma is right.
        splices.insert(end, format!(",{}:{value}", literal(name)));
        let bytes = Bytes::from(splices.apply(&self.body));
        // The body that it was before may hold memory for it.
        self.body = Bytes::from_owner(Owner { bytes, _held: std::mem::take(&mut self.body) });
    }
}

/// Embeddings for our own use.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    /// One vector for each input, in the order of the inputs. All components are finite. The width is not checked.
    pub vectors: Vec<Vec<f32>>,
    /// What the provider reported, unless it cannot be true.
    pub usage: Option<Usage>,
}

pub(crate) fn read_chat_answer(
    body: &Bytes,
    rules: &SpliceRules,
    credential: Option<&str>,
) -> Result<ChatAnswer, UpstreamError> {
    let (text, members) = success(body, credential)?;
    let choices = choices_in(&members)?;
    let mut finish_reasons = Vec::new();
    let mut delivered = Delivered::default();
    for choice in choices.iter().filter_map(|raw| Members::parse(raw.get()).ok()) {
        finish_reasons.extend(choice.present("finish_reason").and_then(text_of).map(Cow::into_owned));
        if let Some(message) = choice.present("message") {
            delivered.add_message(message);
        }
    }
    let mut splices = Splices::default();
    splice_model(&mut splices, text, &members, &rules.public_model);
    let counted_output = rules.bound.map(|bound| truncate(text, &choices, &bound, &mut splices));
    Ok(ChatAnswer {
        body: spliced(body, splices),
        counted_output,
        usage: members.present("usage").and_then(Usage::read_believed),
        finish_reasons,
        delivered,
        upstream_model: members.present("model").and_then(text_of).map(Cow::into_owned),
    })
}

/// An answer that is passed on with the model's name replaced, and the usage it reports. It must have `member`; `without`
/// says what is wrong with one that has not.
pub(crate) fn read_passed(
    body: &Bytes,
    public_model: &str,
    member: &str,
    without: &'static str,
    credential: Option<&str>,
) -> Result<(Bytes, Option<Usage>), UpstreamError> {
    let (text, members) = success(body, credential)?;
    members.present(member).ok_or(UpstreamError::BadAnswer(without))?;
    let usage = members.present("usage").and_then(Usage::read_believed);
    let mut splices = Splices::default();
    splice_model(&mut splices, text, &members, public_model);
    Ok((spliced(body, splices), usage))
}

/// Reads vectors, however they are written: as numbers, or as base64 of little-endian 32-bit floats.
pub(crate) fn read_vectors(body: &Bytes, expected: usize, credential: Option<&str>) -> Result<Vectors, UpstreamError> {
    #[derive(Deserialize)]
    struct Item<'a> {
        index: Option<usize>,
        #[serde(borrow)]
        embedding: &'a RawValue,
    }
    let (_, members) = success(body, credential)?;
    let data = members.present("data").ok_or(UpstreamError::BadAnswer("it has no data"))?;
    let items: Vec<Item<'_>> =
        serde_json::from_str(data.get()).map_err(|_| UpstreamError::BadAnswer("its data are not embeddings"))?;
    if items.len() != expected {
        return Err(UpstreamError::BadAnswer("it has more or fewer embeddings than inputs"));
    }
    let mut places: Vec<Option<Vec<f32>>> = vec![None; expected];
    for (at, item) in items.iter().enumerate() {
        let vector = vector(item.embedding).ok_or(UpstreamError::BadAnswer("an embedding cannot be read"))?;
        match places.get_mut(item.index.unwrap_or(at)) {
            Some(place @ None) => *place = Some(vector),
            Some(Some(_)) | None => return Err(UpstreamError::BadAnswer("its embeddings are numbered wrongly")),
        }
    }
    Ok(Vectors {
        vectors: places.into_iter().flatten().collect(),
        usage: members.present("usage").and_then(Usage::read_believed),
    })
}

fn vector(value: &RawValue) -> Option<Vec<f32>> {
    let vector: Vec<f32> = match text_of(value) {
        Some(encoded) => {
            let bytes = STANDARD.decode(encoded.as_bytes()).ok()?;
            let (floats, rest) = bytes.as_chunks::<4>();
            rest.is_empty().then(|| floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())?
        }
        None => serde_json::from_str(value.get()).ok()?,
    };
    (!vector.is_empty() && vector.iter().all(|component| component.is_finite())).then_some(vector)
}

/// The members of an answer that is none of an error, and the text they are in.
pub(crate) fn success<'a>(body: &'a Bytes, credential: Option<&str>) -> Result<(&'a str, Members<'a>), UpstreamError> {
    let (text, members) = object(body).map_err(|_| UpstreamError::BadAnswer("it is not a JSON object"))?;
    match members.present("error") {
        Some(error) => Err(in_body(error, credential)),
        None => Ok((text, members)),
    }
}

/// The choices of an answer; there may be none of them.
pub(crate) fn choices_in<'a>(members: &Members<'a>) -> Result<Vec<&'a RawValue>, UpstreamError> {
    let elements = members.present("choices").and_then(|value| elements(value.get()).ok());
    elements.ok_or(UpstreamError::BadAnswer("it has no choices"))
}

pub(crate) fn spliced(body: &Bytes, splices: Splices) -> Bytes {
    if splices.is_empty() { body.clone() } else { Bytes::from(splices.apply(body)) }
}

/// Replaces the model's name wherever it is a string other than the public one.
pub(crate) fn splice_model(splices: &mut Splices, text: &str, members: &Members<'_>, public_model: &str) {
    for value in members.all("model") {
        if text_of(value).is_some_and(|model| model != public_model) {
            splices.replace(span(text, value.get()), literal(public_model));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::golden::rules;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[test]
    fn only_the_models_name_changes() {
        let body = bytes(
            r#"{ "id":"x","model" : "real-2024", "choices":[{"index":0,"message":{"role":"assistant","content":"model","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]},"finish_reason":"stop","model":"inner"}],"usage":{"prompt_tokens":3,"completion_tokens":2},"new":1.0 }"#,
        );
        let answer = read_chat_answer(&body, &rules(), None).unwrap();
        assert_eq!(answer.body, String::from_utf8(body.to_vec()).unwrap().replace("\"real-2024\"", "\"asked\""));
        assert_eq!(answer.usage.unwrap().completion_tokens, 2);
        assert_eq!(answer.finish_reasons, ["stop"]);
        assert_eq!(answer.delivered.text(), "modelf{\"a\":1}");
        assert_eq!(answer.upstream_model.as_deref(), Some("real-2024"));
    }

    #[test]
    fn a_member_of_ours_is_added_at_the_end() {
        let mut answer = read_chat_answer(&bytes("{\"choices\":[] }\n"), &rules(), None).unwrap();
        answer.add_member("ragmux", r#"{"sources":[]}"#);
        assert_eq!(answer.body, "{\"choices\":[] ,\"ragmux\":{\"sources\":[]}}\n");
    }

    #[test]
    fn an_answer_that_needs_no_change_is_not_copied() {
        let body = bytes(r#"{"model":"asked","choices":[]}"#);
        assert_eq!(read_chat_answer(&body, &rules(), None).unwrap().body.as_ptr(), body.as_ptr());
    }

    #[test]
    fn a_200_that_is_no_answer_is_an_error() {
        for body in ["", "hello", "[]", r#"{"object":"chat.completion"}"#, r#"{"choices":7}"#] {
            assert!(
                matches!(read_chat_answer(&bytes(body), &rules(), None), Err(UpstreamError::BadAnswer(_))),
                "{body}"
            );
        }
        let error = read_chat_answer(&bytes(r#"{"error":{"message":"busy","code":503}}"#), &rules(), None).unwrap_err();
        assert_eq!((error.status(), error.message()), (503, "busy".to_owned()));
    }

    #[test]
    fn vectors_are_read_from_numbers_and_from_base64_without_loss() {
        let floats = [0.1_f32, -2.5e-8, 1.0];
        let packed: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        let body = format!(
            r#"{{"data":[{{"index":1,"embedding":[0.1,-2.5e-8,1]}},{{"index":0,"embedding":"{}"}}],"usage":{{"prompt_tokens":4,"total_tokens":4}}}}"#,
            STANDARD.encode(packed)
        );
        let read = read_vectors(&bytes(&body), 2, None).unwrap();
        assert_eq!(read.vectors, [floats.to_vec(), floats.to_vec()]);
        assert_eq!(read.usage.unwrap().prompt_tokens, 4);
    }

    #[test]
    fn vectors_come_in_the_order_of_the_inputs() {
        let body = bytes(r#"{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}]}"#);
        assert_eq!(read_vectors(&body, 2, None).unwrap().vectors, [[1.0], [2.0]]);
        let unnumbered = bytes(r#"{"data":[{"embedding":[1]},{"embedding":[2]}]}"#);
        assert_eq!(read_vectors(&unnumbered, 2, None).unwrap().vectors, [[1.0], [2.0]]);
    }

    #[test]
    fn vectors_that_cannot_be_right_are_refused() {
        for body in [
            r#"{"data":[{"embedding":[1]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[2]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[2]}]}"#,
            r#"{"data":[{"embedding":[1]},{"embedding":[]}]}"#,
            r#"{"data":[{"embedding":[1]},{"embedding":null}]}"#,
            r#"{"data":[{"embedding":[1]},{"embedding":"AAA="}]}"#,
            r#"{"data":[{"embedding":[1]},{"embedding":"AADAfw=="}]}"#,
            r#"{"data":[{"embedding":[1]},{"embedding":[1e60]}]}"#,
            r#"{"data":7}"#,
            "{}",
        ] {
            assert!(matches!(read_vectors(&bytes(body), 2, None), Err(UpstreamError::BadAnswer(_))), "{body}");
        }
    }
}
