//! The items of an answer as JSON.
//!
//! What a provider signs or encrypts of its thoughts and wants back is carried by `encrypted_content` of a reasoning item,
//! under a mark that says that it is from here and whose it is: what comes back without it is of OpenAI's making, and of no use to anybody
//! else. Gemini's signature of a call is where Gemini's own OpenAI-compatible API has it:
//! `extra_content.google.thought_signature` of the call.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::hub::{REDACTED, SIGNED};

/// What `encrypted_content` carries, with its mark.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sealed<'a> {
    /// The signature of a thought whose text is the summary.
    Signed(Cow<'a, str>),
    /// A thought that only its provider can read.
    Redacted(Cow<'a, str>),
    /// Not from here.
    Foreign,
}

impl<'a> Sealed<'a> {
    pub(super) fn read(text: Cow<'a, str>) -> Self {
        if text.starts_with(SIGNED) {
            Self::Signed(text)
        } else if text.starts_with(REDACTED) {
            Self::Redacted(text)
        } else {
            Self::Foreign
        }
    }
}

/// A thought. Its text stands as a summary, as clients of this API show thoughts.
pub(super) fn reasoning(id: &str, text: &str, signature: Option<&str>) -> Value {
    let summary = if text.is_empty() { json!([]) } else { json!([summary_part(text)]) };
    sealed(id, summary, signature)
}

/// A thought that only its provider can read.
pub(super) fn redacted(id: &str, data: &str) -> Value {
    sealed(id, json!([]), Some(data))
}

fn sealed(id: &str, summary: Value, seal: Option<&str>) -> Value {
    let mut item = json!({ "id": id, "type": "reasoning", "summary": summary });
    if let (Some(members), Some(seal)) = (item.as_object_mut(), seal) {
        members.insert("encrypted_content".to_owned(), seal.into());
    }
    item
}

pub(super) fn summary_part(text: &str) -> Value {
    json!({ "type": "summary_text", "text": text })
}

/// A part of a message: text, or a refusal.
pub(super) fn part(is_refusal: bool, text: &str) -> Value {
    if is_refusal {
        json!({ "type": "refusal", "refusal": text })
    } else {
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
    }
}

pub(super) fn message(id: &str, status: &str, parts: &[Value]) -> Value {
    json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": parts })
}

/// A call of a function. Its arguments stand as the model wrote them.
pub(super) fn call(
    id: &str,
    status: &str,
    (call_id, name, arguments): (&str, &str, &str),
    signature: Option<&str>,
) -> Value {
    let mut item = json!({
        "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments,
    });
    if let (Some(members), Some(signature)) = (item.as_object_mut(), signature) {
        let content = json!({ "google": { "thought_signature": signature } });
        members.insert("extra_content".to_owned(), content);
    }
    item
}

/// The provider's id, marked as this API's are; a new one where it gives none.
pub(super) fn answer_id(given: Option<&str>) -> String {
    const MARK: &str = "resp_";
    match given.filter(|id| !id.is_empty()) {
        Some(id) if id.starts_with(MARK) => id.to_owned(),
        Some(id) => format!("{MARK}{id}"),
        None => format!("{MARK}{:032x}", rand::random::<u128>()),
    }
}

/// The id of an item, by its kind, the answer and its place there.
pub(super) fn item_id(kind: &str, answer: &str, place: usize) -> String {
    format!("{kind}_{}_{place}", answer.strip_prefix("resp_").unwrap_or(answer))
}
