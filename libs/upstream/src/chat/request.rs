//! The body of a chat request, as far as it is read here.

use serde_json::Value;

use crate::error::ApiError;

/// Most choices a request may ask for.
const MOST_CHOICES: u64 = 128;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatRequest {
    pub(crate) model: String,
    pub(crate) messages: Vec<Message>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) choices: usize,
    pub(crate) stop: Vec<String>,
    /// In tokens.
    pub(crate) output_limit: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) role: String,
    /// The texts of its parts; other parts are passed over.
    pub(crate) text: String,
}

impl ChatRequest {
    pub(crate) fn parse(body: &Value) -> Result<Self, ApiError> {
        let model = body.get("model").and_then(Value::as_str).ok_or_else(|| missing("model"))?.to_owned();
        let messages = body.get("messages").ok_or_else(|| missing("messages"))?;
        let messages = messages.as_array().ok_or_else(|| wrong("messages", "an array"))?;
        if messages.is_empty() {
            return Err(ApiError::invalid(
                "messages",
                "Invalid 'messages': empty array. Expected at least one message.",
            ));
        }
        let messages = messages.iter().enumerate().map(|(at, message)| Message::parse(at, message));
        let stream = optional(body, "stream", Value::as_bool, "a boolean")?.unwrap_or(false);
        let options = body.get("stream_options").filter(|options| !options.is_null());
        if options.is_some() && !stream {
            return Err(ApiError::invalid("stream_options", "'stream_options' is only allowed when 'stream' is true."));
        }
        let include_usage = match options {
            Some(options) => optional(options, "include_usage", Value::as_bool, "a boolean")?.unwrap_or(false),
            None => false,
        };
        Ok(Self {
            model,
            messages: messages.collect::<Result<_, _>>()?,
            stream,
            include_usage,
            choices: choices(body)?,
            stop: stop(body)?,
            output_limit: output_limit(body)?,
        })
    }

    /// The text of the last message of a person.
    pub(crate) fn question(&self) -> &str {
        self.messages.iter().rev().find(|message| message.role == "user").map_or("", |message| &message.text)
    }
}

impl Message {
    fn parse(at: usize, message: &Value) -> Result<Self, ApiError> {
        let role =
            message.get("role").and_then(Value::as_str).ok_or_else(|| missing(&format!("messages[{at}].role")))?;
        if !["system", "developer", "user", "assistant", "tool", "function"].contains(&role) {
            let param = format!("messages[{at}].role");
            return Err(
                ApiError::invalid(param.as_str(), format!("Invalid value for '{param}'.")).with_code("invalid_value")
            );
        }
        let text = match message.get("content") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => parts
                .iter()
                .filter_map(|part| part.get("text").or_else(|| part.get("refusal")).and_then(Value::as_str))
                .collect::<Vec<_>>()
                .join("\n"),
            Some(_) => return Err(wrong(&format!("messages[{at}].content"), "a string or an array")),
        };
        Ok(Self { role: role.to_owned(), text })
    }
}

fn choices(body: &Value) -> Result<usize, ApiError> {
    let choices = optional(body, "n", Value::as_u64, "an integer")?.unwrap_or(1);
    if (1..=MOST_CHOICES).contains(&choices) {
        Ok(usize::try_from(choices).unwrap_or(1))
    } else {
        Err(ApiError::invalid("n", format!("Invalid 'n': expected 1 to {MOST_CHOICES}.")))
    }
}

fn stop(body: &Value) -> Result<Vec<String>, ApiError> {
    let strings = match body.get("stop") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(one)) => Some(vec![one.clone()]),
        Some(Value::Array(several)) if several.len() <= 4 => {
            several.iter().map(|one| one.as_str().map(str::to_owned)).collect()
        }
        Some(_) => None,
    };
    let mut strings = strings.ok_or_else(|| wrong("stop", "a string or an array of up to four strings"))?;
    strings.retain(|one| !one.is_empty());
    Ok(strings)
}

fn output_limit(body: &Value) -> Result<Option<usize>, ApiError> {
    let mut limit = None;
    for field in ["max_tokens", "max_completion_tokens"] {
        let value = optional(body, field, Value::as_u64, "an integer of at least 1")?;
        if value == Some(0) {
            return Err(wrong(field, "an integer of at least 1"));
        }
        limit = value.or(limit);
    }
    Ok(limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn optional<T>(
    body: &Value,
    field: &str,
    read: impl Fn(&Value) -> Option<T>,
    expected: &str,
) -> Result<Option<T>, ApiError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| wrong(field, expected)),
    }
}

fn missing(field: &str) -> ApiError {
    ApiError::invalid(field, format!("Missing required parameter: '{field}'.")).with_code("missing_required_parameter")
}

fn wrong(field: &str, expected: &str) -> ApiError {
    ApiError::invalid(field, format!("Invalid type for '{field}': expected {expected}.")).with_code("invalid_type")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(field: &str, value: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
        body[field] = value;
        ChatRequest::parse(&body)
    }

    #[test]
    fn the_last_question_is_found_in_parts_too() {
        let request = with(
            "messages",
            json!([
                { "role": "user", "content": "first" },
                { "role": "user", "content": [{ "type": "text", "text": "second" }, { "type": "image_url" }] },
                { "role": "assistant", "content": null, "tool_calls": [] },
            ]),
        );
        assert_eq!(request.unwrap().question(), "second");
    }

    #[test]
    fn the_newer_output_limit_wins() {
        let body = json!({
            "model": "m", "messages": [{ "role": "user", "content": "" }], "max_tokens": 5, "max_completion_tokens": 7,
        });
        assert_eq!(ChatRequest::parse(&body).unwrap().output_limit, Some(7));
    }

    #[test]
    fn wrong_fields_are_refused() {
        for (field, value) in [
            ("model", Value::Null),
            ("messages", json!([])),
            ("messages", json!("hello")),
            ("messages", json!([{ "content": "who?" }])),
            ("messages", json!([{ "role": "king", "content": "hello" }])),
            ("messages", json!([{ "role": "user", "content": 7 }])),
            ("n", json!(0)),
            ("n", json!(129)),
            ("stop", json!(["a", "b", "c", "d", "e"])),
            ("stop", json!([1])),
            ("max_tokens", json!(0)),
            ("max_tokens", json!(-1)),
            ("stream", json!("yes")),
            ("stream_options", json!({ "include_usage": true })),
        ] {
            assert!(with(field, value.clone()).is_err(), "{field}: {value}");
        }
    }
}
