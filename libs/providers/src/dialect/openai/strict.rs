//! Objects of a request in which no name can be taken for another.
//!
//! What is admitted is what is read here; what is done is what the provider reads. A name given twice, or in letters
//! that a careless server takes for another name, would be two requests in one. Repeated names are looked for in the
//! whole of a body, other letters where it is read: elsewhere, in a schema or in tags, names may differ by them alone.

use super::request::RequestError;
use crate::json::{Members, object};
use crate::names::{Fault, check};

/// The deepest nesting of a request body.
pub(super) const MAX_DEPTH: usize = 128;
/// The members that are read here, or that change what a call costs.
const KNOWN: [&str; 18] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "n",
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
    "num_predict",
    "tools",
    "functions",
    "stop",
    "user",
    "metadata",
    "input",
    "ragmux",
];
/// The members of messages and of their parts that are read here.
pub(super) const KNOWN_IN_MESSAGES: [&str; 8] =
    ["role", "content", "tool_calls", "function_call", "name", "type", "text", "cache_control"];

/// Reads a body as one object in which no name can be taken for another.
pub(super) fn read_body(body: &[u8]) -> Result<(&str, Members<'_>), RequestError> {
    read_known(body, &KNOWN)
}

/// The same for a body with other members that are read.
pub(crate) fn read_known<'a>(body: &'a [u8], known: &[&'static str]) -> Result<(&'a str, Members<'a>), RequestError> {
    let (text, members) = object(body).map_err(|error| RequestError::Malformed(error.to_string()))?;
    check(text, MAX_DEPTH).map_err(|fault| match fault {
        Fault::TooDeep => RequestError::TooDeep,
        Fault::Repeated(path) => RequestError::Repeated(path),
    })?;
    Ok((text, strict("", members, known)?))
}

/// Checks that a body is one object, not nested too deep, in which no name can be taken for another.
///
/// # Errors
/// See [`RequestError`].
pub fn check_body(body: &[u8]) -> Result<(), RequestError> {
    read_body(body).map(|_| ())
}

/// Members without repeated names and without known names in other letters.
pub(crate) fn strict<'a>(
    path: &str,
    members: Members<'a>,
    known: &[&'static str],
) -> Result<Members<'a>, RequestError> {
    let full = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    if let Some(name) = members.repeated() {
        return Err(RequestError::Repeated(full(name)));
    }
    if let Some((name, known)) = members.misspelt(known) {
        return Err(RequestError::Misspelt { name: full(name), known });
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::super::request::ChatRequest;
    use super::*;

    fn refused(body: &str) -> String {
        ChatRequest::parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_name_given_twice_at_any_level_is_refused() {
        for (body, said) in [
            (r#"{"messages":[{"role":"user"}],"max_tokens":1,"max_tokens":2}"#, "max_tokens occurs more than once"),
            (r#"{"messages":[{"role":"user"}],"model":"a","mod\u0065l":"b"}"#, "model occurs more than once"),
            (
                r#"{"messages":[{"role":"user","content":"a","content":"b"}]}"#,
                "messages[0].content occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}"#,
                "messages[0].content[0].text occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user"}],"stream_options":{"include_usage":false,"include_usage":true}}"#,
                "stream_options.include_usage occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user"}],"metadata":{"team":"a","t\u0065am":"b"}}"#,
                "metadata.team occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user"}],"tools":[{"type":"function","function":{"name":"a","name":"b"}}]}"#,
                "tools[0].function.name occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user"}],"tools":{"type":"function","type":"web_search"}}"#,
                "tools.type occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user"}],"response_format":{"type":"text","type":"json_object"}}"#,
                "response_format.type occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"a","url":"b"}}]}]}"#,
                "messages[0].content[0].image_url.url occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user"},{"role":"assistant","tool_calls":[{"id":"a","id":"b"}]}]}"#,
                "messages[1].tool_calls[0].id occurs more than once",
            ),
        ] {
            assert_eq!(refused(body), said);
        }
    }

    #[test]
    fn a_name_that_a_careless_server_would_read_for_ours_is_refused() {
        for (body, said) in [
            (r#"{"messages":[{"role":"user"}],"model":"a","Model":"b"}"#, "Model occurs more than once"),
            (r#"{"messages":[{"role":"user"}],"MAX_TOKENS":9}"#, "MAX_TOKENS must be written max_tokens"),
            (
                "{\"messages\":[{\"role\":\"user\"}],\"max_to\u{212a}ens\":9}",
                "max_to\u{212a}ens must be written max_tokens",
            ),
            (r#"{"messages":[{"role":"user","Content":"b"}]}"#, "messages[0].Content must be written content"),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","Text":"b"}]}]}"#,
                "messages[0].content[0].Text occurs more than once",
            ),
            (
                r#"{"messages":[{"role":"user"}],"stream_options":{"Include_usage":true}}"#,
                "stream_options.Include_usage must be written include_usage",
            ),
        ] {
            assert_eq!(refused(body), said);
        }
        // What is not read here may be written as anybody likes.
        assert!(ChatRequest::parse(br#"{"messages":[{"role":"user"}],"X":{"A":1,"a":2},"Temperature":1}"#).is_ok());
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = format!(r#"{{"messages":[{{"role":"user"}}],"x":{}{}}}"#, "[".repeat(128), "]".repeat(128));
        assert_eq!(ChatRequest::parse(deep.as_bytes()).unwrap_err(), RequestError::TooDeep);
    }
}
