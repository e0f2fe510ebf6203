use super::*;
use crate::dialect::said::MAX_ITEMS;

fn refused(body: &str) -> String {
    MessagesRequest::parse(body.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_request_is_read_with_what_the_gateway_needs() {
    let body = br#"{"model":"claude-x","stream":true,"max_tokens":9,"metadata":{"user_id":"u"},
        "ragmux":{"include_context":true},"system":[{"type":"text","text":"be \"kind\""}],
        "messages":[{"role":"user","content":"first"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
            {"type":"tool_use","id":"a","name":"f","input":{"x":1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"r"}]},
            {"type":"text","text":"what"},{"type":"image","source":{"type":"url","url":"x"}},
            {"type":"document","source":{"type":"text","media_type":"text/plain","data":"page"}},
            {"type":"text","text":"is it?"}]}],"tools":[{"name":"f","input_schema":{}}],"temperature":0.5}"#;
    let request = MessagesRequest::parse(body).unwrap();
    assert_eq!((&*request.model, request.max_tokens, request.user.as_deref()), ("claude-x", 9, Some("u")));
    assert!(request.stream && request.include_context && !request.ends_with_tool_result());
    assert_eq!(request.last_user_text().unwrap(), "what\nis it?");
}

#[test]
fn a_bad_request_is_told_what_is_wrong_with_it() {
    for (body, said) in [
        ("", "malformed JSON body: EOF while parsing a value at line 1 column 0"),
        (r#"{"max_tokens":9}"#, "messages is required"),
        (r#"{"max_tokens":9,"messages":[]}"#, "messages is required"),
        (r#"{"max_tokens":9,"messages":"hi"}"#, "messages must be an array"),
        (r#"{"messages":[{"role":"user","content":"a"}]}"#, "max_tokens is required"),
        (r#"{"max_tokens":0,"messages":[]}"#, "max_tokens must be a whole number, one or more"),
        (r#"{"max_tokens":"9","messages":[]}"#, "max_tokens must be a whole number, one or more"),
        (r#"{"max_tokens":9,"model":7,"messages":[]}"#, "model must be a string"),
        (r#"{"max_tokens":9,"stream":"yes","messages":[]}"#, "stream must be true or false"),
        (r#"{"max_tokens":9,"system":7,"messages":[]}"#, "system must be a string or an array of blocks"),
        (r#"{"max_tokens":9,"metadata":7,"messages":[]}"#, "metadata must be an object"),
        (r#"{"max_tokens":9,"messages":["hi"]}"#, "messages[0] must be an object"),
        (
            r#"{"max_tokens":9,"messages":[{"role":"tool","content":"a"}]}"#,
            "messages[0].role must be user or assistant",
        ),
        (
            r#"{"max_tokens":9,"messages":[{"role":"user"}]}"#,
            "messages[0].content must be a string or an array of blocks",
        ),
        (
            r#"{"max_tokens":9,"messages":[{"role":"user","content":[{"text":"a"}]}]}"#,
            "messages[0].content[0].type must be a string such as text or image",
        ),
        (
            r#"{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"text"}]}]}"#,
            "messages[0].content[0].text must be a string",
        ),
        (
            r#"{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[7]}]}]}"#,
            "messages[0].content[0].content[0] must be an object",
        ),
        (r#"{"max_tokens":9,"messages":[{"role":"user","content":"a"}],"tools":{}}"#, "tools must be an array"),
        (r#"{"max_tokens":9,"messages":[{"role":"user","content":"a"}],"tools":[7]}"#, "tools[0] must be an object"),
        (r#"{"max_tokens":9,"Max_Tokens":90,"messages":[]}"#, "Max_Tokens occurs more than once"),
        (r#"{"MAX_TOKENS":9,"messages":[]}"#, "MAX_TOKENS must be written max_tokens"),
        (
            r#"{"max_tokens":9,"messages":[{"role":"user","content":"\ud800"}]}"#,
            "messages[0].content has an invalid Unicode escape: a surrogate that is not one of a pair",
        ),
    ] {
        assert_eq!(refused(body), said, "{body}");
    }
    let count = br#"{"messages":[{"role":"user","content":"a"}]}"#;
    assert!(MessagesRequest::parse(count).is_err() && MessagesRequest::parse_count(count).is_ok());
}

#[test]
fn blocks_are_bounded() {
    let blocks = vec![r#"{"type":"text","text":"a"}"#; MAX_ITEMS].join(",");
    let body = format!(r#"{{"max_tokens":9,"messages":[{{"role":"user","content":[{blocks}]}}]}}"#);
    assert_eq!(refused(&body), "messages must be at most 65536 messages and blocks");
}
