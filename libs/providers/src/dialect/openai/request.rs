//! A client's chat request, read without copying it.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::strict::{KNOWN_IN_MESSAGES, MAX_DEPTH, read_body, strict};
use crate::inbound::Utterance;
use crate::json::{Members, elements, text_of};

const CONTENT: &str = "a string or an array of parts";
/// OpenAI API reference, Create chat completion, `n`.
const MAX_CHOICES: u64 = 128;
/// What is read of a message or a part takes some hundred bytes, whatever its size is in the body.
pub(crate) const MAX_ITEMS: usize = 65_536;
/// The fields that bound the output and are part of the API.
pub(super) const OUTPUT_FIELDS: [&str; 2] = ["max_completion_tokens", "max_tokens"];
/// Fields by which particular servers bound the output; there a negative number means "no bound".
pub(crate) const SERVER_OUTPUT_FIELDS: [&str; 4] = ["max_output_tokens", "max_new_tokens", "n_predict", "num_predict"];

/// Why a request is answered 400. The texts are for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not one JSON object.
    #[error("malformed JSON body: {0}")]
    Malformed(String),
    /// Arrays and objects are nested more than 128 deep.
    #[error("the JSON body is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A name occurs twice in one object, so that two readers could see two different requests.
    #[error("{0} occurs more than once")]
    Repeated(String),
    /// A name is written in other letters than the API's, so that this reader and another could see different requests.
    #[error("{name} must be written {known}")]
    Misspelt {
        /// The name as sent, as a path.
        name: String,
        /// As it is.
        known: &'static str,
    },
    /// A field that must be there is not.
    #[error("{0} is required")]
    Missing(&'static str),
    /// A text has half of a surrogate pair in it (RFC 8259, 8.2), so that it is no Unicode text.
    #[error("{0} has an invalid Unicode escape: a surrogate that is not one of a pair")]
    Escape(String),
    /// A field has a value it cannot have.
    #[error("{field} must be {must}")]
    Invalid {
        /// Which field, as a path.
        field: String,
        /// What it must be.
        must: &'static str,
    },
}

impl RequestError {
    /// The field complained about, for the `param` of the error.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Malformed(_) | Self::TooDeep => None,
            Self::Repeated(field)
            | Self::Misspelt { name: field, .. }
            | Self::Escape(field)
            | Self::Invalid { field, .. } => Some(field),
            Self::Missing(field) => Some(field),
        }
    }
}

/// A part of a message's content.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Its `type`, such as `text` or `image_url`.
    pub kind: Cow<'a, str>,
    /// The text of a text part.
    pub text: Option<Cow<'a, str>>,
    pub(super) members: Members<'a>,
}

/// The content of a message.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// Absent or `null`, as in an assistant's turn of tool calls.
    None,
    /// A string.
    Text(Cow<'a, str>),
    /// An array of parts.
    Parts(Vec<Part<'a>>),
}

/// One message.
#[derive(Clone, Debug)]
pub struct ChatMessage<'a> {
    /// Its `role`.
    pub role: Cow<'a, str>,
    /// Its `content`.
    pub content: Content<'a>,
    /// Its `tool_calls` as sent.
    pub tool_calls: Option<&'a RawValue>,
    pub(super) raw_content: Option<&'a RawValue>,
    pub(super) members: Members<'a>,
}

impl ChatMessage<'_> {
    /// Whether it carries the rules of the conversation (`system`, or `developer` for newer models).
    #[must_use]
    pub fn is_system(&self) -> bool {
        matches!(self.role.as_ref(), "system" | "developer")
    }

    /// The text of the content, parts joined by a line end; empty when there is none.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match &self.content {
            Content::None => Cow::Borrowed(""),
            Content::Text(text) => Cow::Borrowed(text),
            Content::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }

    /// The parts of the content, none where it is no array.
    pub(super) fn parts(&self) -> &[Part<'_>] {
        match &self.content {
            Content::Parts(parts) => parts,
            Content::None | Content::Text(_) => &[],
        }
    }
}

/// A client's chat request. Everything it does not name is kept in the body it borrows from.
#[derive(Clone, Debug)]
pub struct ChatRequest<'a> {
    /// The model name asked for; empty when none is given.
    pub model: Cow<'a, str>,
    /// The conversation; at least one message.
    pub messages: Vec<ChatMessage<'a>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the client wants usage in the stream.
    pub include_usage: bool,
    /// How many answers are asked for.
    pub n: u64,
    /// The largest of all fields that bound the output, in tokens per answer; `None` when nothing bounds it.
    pub output_limit: Option<u64>,
    /// `tools` as sent.
    pub tools: Option<&'a RawValue>,
    /// `stop` as sent.
    pub stop: Option<&'a RawValue>,
    /// `user` where it is a string.
    pub user: Option<Cow<'a, str>>,
    /// `metadata` as sent.
    pub metadata: Option<&'a RawValue>,
    /// Whether the passages used are to be returned (`ragmux.include_context`).
    pub include_context: bool,
    pub(super) text: &'a str,
    pub(super) members: Members<'a>,
}

impl<'a> ChatRequest<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// See [`RequestError`]; all of them are the client's to mend.
    pub fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        let (text, members) = read_body(body)?;
        let ragmux = match members.present("ragmux").map(|value| Members::parse(value.get())) {
            Some(Ok(ragmux)) => Some(strict("ragmux", ragmux, &["include_context"])?),
            Some(Err(_)) | None => None,
        };
        Ok(Self {
            model: optional_text(&members, "model")?.unwrap_or_default(),
            messages: messages(&members)?,
            stream: flag(&members, "stream", "stream")?,
            include_usage: include_usage(&members)?,
            n: choices(&members, "n")?.unwrap_or(1),
            output_limit: output_limit(&members, &OUTPUT_FIELDS)?,
            tools: members.present("tools"),
            stop: members.present("stop"),
            user: members.present("user").and_then(text_of),
            metadata: members.present("metadata"),
            include_context: ragmux
                .is_some_and(|ragmux| ragmux.get("include_context").is_some_and(|value| value.get() == "true")),
            text,
            members,
        })
    }

    /// The text of the last message of role `user`.
    #[must_use]
    pub fn last_user_text(&self) -> Option<Cow<'_, str>> {
        self.messages.iter().rev().find(|message| message.role == "user").map(ChatMessage::text)
    }

    /// See [`crate::Inbound::utterances`].
    pub(crate) fn utterances(&self) -> Vec<Utterance<'_>> {
        let said = self.messages.iter().filter_map(|message| {
            let is_users = match message.role.as_ref() {
                "user" => true,
                "assistant" => false,
                _ => return None,
            };
            let text = message.text();
            (!text.trim().is_empty()).then_some(Utterance { is_users, text })
        });
        said.collect()
    }

    /// See [`crate::Inbound::ends_with_tool_result`].
    #[must_use]
    pub fn ends_with_tool_result(&self) -> bool {
        self.messages.last().is_some_and(|message| matches!(message.role.as_ref(), "tool" | "function"))
    }
}

fn invalid(field: impl Into<String>, must: &'static str) -> RequestError {
    RequestError::Invalid { field: field.into(), must }
}

/// Whether a client wants usage in its stream.
pub(crate) fn include_usage(members: &Members<'_>) -> Result<bool, RequestError> {
    const OPTIONS: &str = "stream_options";
    let Some(value) = members.present(OPTIONS) else { return Ok(false) };
    let options = Members::parse(value.get()).map_err(|_| invalid(OPTIONS, "an object"))?;
    flag(&strict(OPTIONS, options, &["include_usage"])?, "include_usage", "stream_options.include_usage")
}

pub(crate) fn flag(members: &Members<'_>, name: &str, path: &'static str) -> Result<bool, RequestError> {
    match members.present(name).map(RawValue::get) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(invalid(path, "true or false")),
    }
}

pub(crate) fn optional_text<'a>(
    members: &Members<'a>,
    name: &'static str,
) -> Result<Option<Cow<'a, str>>, RequestError> {
    members.present(name).map(|value| text_at(value, || name.to_owned(), "a string")).transpose()
}

/// The text of a value that must be a string. `field` names it, as a path, should it be none.
///
/// # Errors
/// [`RequestError::Escape`] for a string that is no Unicode text, [`RequestError::Invalid`] for anything else.
pub fn text_at<'a>(
    value: &'a RawValue,
    field: impl FnOnce() -> String,
    must: &'static str,
) -> Result<Cow<'a, str>, RequestError> {
    text_of(value).ok_or_else(|| match value.get().starts_with('"') {
        // That it is a string has been checked with the rest of the body; all that can be wrong is an escape.
        true => RequestError::Escape(field()),
        false => invalid(field(), must),
    })
}

/// A number of answers.
pub(crate) fn choices(members: &Members<'_>, name: &str) -> Result<Option<u64>, RequestError> {
    match members.present(name).map(|value| value.get().parse::<u64>()) {
        None => Ok(None),
        Some(Ok(n)) if (1..=MAX_CHOICES).contains(&n) => Ok(Some(n)),
        Some(_) => Err(invalid(name, "a whole number from 1 to 128")),
    }
}

/// The largest bound of the output, by the API's own fields and those of servers.
pub(crate) fn output_limit(members: &Members<'_>, own: &[&str]) -> Result<Option<u64>, RequestError> {
    let mut largest = None;
    for name in own.iter().copied() {
        let Some(value) = members.present(name) else { continue };
        // No bound, as servers have it that people run themselves (LM Studio, Chat completions).
        if value.get() == "-1" {
            return Ok(None);
        }
        let limit = value.get().parse::<u64>().map_err(|_| invalid(name, "a whole number, zero or more"))?;
        largest = largest.max(Some(limit));
    }
    for name in SERVER_OUTPUT_FIELDS {
        let Some(value) = members.present(name) else { continue };
        match value.get().parse::<i64>() {
            Ok(limit) => match u64::try_from(limit) {
                Ok(limit) => largest = largest.max(Some(limit)),
                Err(_) => return Ok(None),
            },
            Err(_) => return Err(invalid(name, "a whole number")),
        }
    }
    Ok(largest)
}

fn messages<'a>(members: &Members<'a>) -> Result<Vec<ChatMessage<'a>>, RequestError> {
    let value = members.present("messages").ok_or(RequestError::Missing("messages"))?;
    let list = elements(value.get()).map_err(|_| invalid("messages", "an array"))?;
    if list.is_empty() {
        return Err(RequestError::Missing("messages"));
    }
    let mut room = MAX_ITEMS;
    list.into_iter().enumerate().map(|(at, raw)| message(at, raw, &mut room)).collect()
}

/// Takes room for so many items more.
fn take(room: &mut usize, items: usize) -> Result<(), RequestError> {
    *room = room.checked_sub(items).ok_or_else(|| invalid("messages", "at most 65536 messages and parts"))?;
    Ok(())
}

fn message<'a>(at: usize, raw: &'a RawValue, room: &mut usize) -> Result<ChatMessage<'a>, RequestError> {
    take(room, 1)?;
    let path = format!("messages[{at}]");
    let members = Members::parse(raw.get()).map_err(|_| invalid(path.as_str(), "an object"))?;
    let members = strict(&path, members, &KNOWN_IN_MESSAGES)?;
    const ROLE: &str = "a role such as user, system or assistant";
    let role_field = || format!("{path}.role");
    let role = members.present("role").ok_or_else(|| invalid(role_field(), ROLE))?;
    let role = text_at(role, role_field, ROLE)?;
    if role.is_empty() {
        return Err(invalid(role_field(), ROLE));
    }
    let raw_content = members.get("content");
    let content = match raw_content {
        None => Content::None,
        Some(value) if value.get() == "null" => Content::None,
        Some(value) if value.get().starts_with('"') => {
            Content::Text(text_at(value, || format!("{path}.content"), CONTENT)?)
        }
        Some(array) => {
            let list = elements(array.get()).map_err(|_| invalid(format!("{path}.content"), CONTENT))?;
            take(room, list.len())?;
            let parts = list.into_iter().enumerate().map(|(at, raw)| part(&format!("{path}.content[{at}]"), raw));
            Content::Parts(parts.collect::<Result<_, _>>()?)
        }
    };
    Ok(ChatMessage { role, content, tool_calls: members.present("tool_calls"), raw_content, members })
}

fn part<'a>(path: &str, raw: &'a RawValue) -> Result<Part<'a>, RequestError> {
    let members = Members::parse(raw.get()).map_err(|_| invalid(path, "an object"))?;
    let members = strict(path, members, &KNOWN_IN_MESSAGES)?;
    const KIND: &str = "a string such as text or image_url";
    let kind = members.present("type").ok_or_else(|| invalid(format!("{path}.type"), KIND))?;
    let kind = text_at(kind, || format!("{path}.type"), KIND)?;
    let text_field = || format!("{path}.text");
    let text = match members.present("text") {
        Some(value) if kind == "text" => Some(text_at(value, text_field, "a string")?),
        None if kind == "text" => return Err(invalid(text_field(), "a string")),
        Some(_) | None => None,
    };
    Ok(Part { kind, text, members })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        ChatRequest::parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_request_is_read_with_what_the_gateway_needs() {
        let body = br#"{"model":"gpt-x","stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":5,
            "max_completion_tokens":9,"user":"u","metadata":{"team":"a"},"ragmux":{"include_context":true},
            "messages":[{"role":"system","content":"be \"kind\""},{"role":"assistant","content":null,"tool_calls":[{}]},
            {"role":"user","content":[{"type":"text","text":"what"},{"type":"image_url","image_url":{"url":"x"}},
            {"type":"text","text":"is it?"}]}],"tools":[{"type":"function"}],"temperature":0.5}"#;
        let request = ChatRequest::parse(body).unwrap();
        assert_eq!(request.model, "gpt-x");
        assert!(request.stream && request.include_usage && request.include_context);
        assert_eq!((request.n, request.output_limit), (2, Some(9)));
        assert_eq!(request.last_user_text().unwrap(), "what\nis it?");
        assert!(!request.ends_with_tool_result());
    }

    #[test]
    fn a_bad_request_is_told_what_is_wrong_with_it() {
        for (body, said) in [
            ("", "malformed JSON body: EOF while parsing a value at line 1 column 0"),
            ("[]", "malformed JSON body: invalid type: sequence, expected a JSON object at line 1 column 0"),
            (r#"{"model":"m"}"#, "messages is required"),
            (r#"{"messages":null}"#, "messages is required"),
            (r#"{"messages":[]}"#, "messages is required"),
            (r#"{"messages":"hi"}"#, "messages must be an array"),
            (r#"{"messages":["hi"]}"#, "messages[0] must be an object"),
            (r#"{"messages":[{"content":"a"}]}"#, "messages[0].role must be a role such as user, system or assistant"),
            (
                r#"{"messages":[{"role":"user","content":7}]}"#,
                "messages[0].content must be a string or an array of parts",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"text"}]}]}"#,
                "messages[0].content[0].text must be a string",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{}]}]}"#,
                "messages[0].content[0].type must be a string such as text or image_url",
            ),
            (r#"{"messages":[{"role":"user"}],"model":7}"#, "model must be a string"),
            (r#"{"messages":[{"role":"user"}],"stream":"yes"}"#, "stream must be true or false"),
            (r#"{"messages":[{"role":"user"}],"n":0}"#, "n must be a whole number from 1 to 128"),
            (r#"{"messages":[{"role":"user"}],"max_tokens":-2}"#, "max_tokens must be a whole number, zero or more"),
            (r#"{"messages":[{"role":"user"}],"stream_options":[]}"#, "stream_options must be an object"),
        ] {
            assert_eq!(refused(body), said);
        }
        for (body, field) in [
            (r#"{"messages":[{"role":"user"}],"model":"\ud800"}"#, "model"),
            (r#"{"messages":[{"role":"\udc00"}]}"#, "messages[0].role"),
            (
                r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"\ud83d!"}]}"#,
                "messages[1].content",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"text","text":"\ude00\ud83d"}]}]}"#,
                "messages[0].content[0].text",
            ),
            (r#"{"messages":[{"role":"user","content":[{"type":"\ud800"}]}]}"#, "messages[0].content[0].type"),
        ] {
            let error = ChatRequest::parse(body.as_bytes()).unwrap_err();
            assert_eq!(error, RequestError::Escape(field.to_owned()));
            assert_eq!(error.param(), Some(field));
        }
        assert!(refused("{\"messages\":[\"\u{0}\"]}").starts_with("malformed JSON body"));
        assert!(ChatRequest::parse(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn a_body_of_many_small_messages_does_not_take_many_times_its_size() {
        let body = |messages: usize| format!(r#"{{"messages":[{}]}}"#, vec![r#"{"role":"user"}"#; messages].join(","));
        assert!(ChatRequest::parse(body(MAX_ITEMS).as_bytes()).is_ok());
        assert_eq!(refused(&body(MAX_ITEMS + 1)), "messages must be at most 65536 messages and parts");
        let parts = vec![r#"{"type":"x"}"#; MAX_ITEMS].join(",");
        let body = format!(r#"{{"messages":[{{"role":"user","content":[{parts}]}}]}}"#);
        assert_eq!(refused(&body), "messages must be at most 65536 messages and parts");
    }

    #[test]
    fn a_server_field_that_lifts_the_bound_lifts_it() {
        let parse = |fields: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user"}}]{fields}}}"#);
            ChatRequest::parse(body.as_bytes()).unwrap().output_limit
        };
        assert_eq!(parse(""), None);
        assert_eq!(parse(r#","max_tokens":10,"n_predict":20"#), Some(20));
        assert_eq!(parse(r#","max_tokens":10,"n_predict":-1"#), None);
        assert_eq!(parse(r#","max_tokens":-1"#), None);
        assert_eq!(parse(r#","max_tokens":-1,"max_completion_tokens":7"#), None);
    }

    #[test]
    fn odd_content_of_our_own_member_counts_as_absent() {
        for own in ["7", "[]", "{}", r#"{"include_context":"yes"}"#] {
            let body = format!(r#"{{"messages":[{{"role":"user"}}],"ragmux":{own}}}"#);
            assert!(!ChatRequest::parse(body.as_bytes()).unwrap().include_context);
        }
    }
}
