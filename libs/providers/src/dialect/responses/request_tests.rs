use super::*;
use crate::dialect::said::MAX_ITEMS;

fn parse(body: &str) -> ResponsesRequest<'_> {
    ResponsesRequest::parse(body.as_bytes()).unwrap()
}

fn refused(body: &str) -> String {
    ResponsesRequest::parse(body.as_bytes()).unwrap_err().to_string()
}

#[test]
fn what_is_asked_is_read() {
    let request = parse(
        r#"{"model":"m","stream":true,"max_output_tokens":50,"instructions":"be kind","user":"u","store":true,
            "ragmux":{"include_context":true},"include":["reasoning.encrypted_content"],
            "text":{"format":{"type":"json_schema","schema":{}}},"tools":[{"type":"function","name":"f"}],"input":[
            {"role":"user","content":"one"},
            {"type":"message","role":"user","content":[{"type":"input_text","text":"two"},{"type":"input_text","text":"three"}]},
            {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}]},
            {"type":"reasoning","id":"rs_2","summary":[],"content":[{"type":"reasoning_text","text":"well"}]},
            {"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"},
            {"type":"function_call_output","call_id":"c","output":"done"}]}"#,
    );
    assert_eq!((&*request.model, request.stream, request.max_output_tokens), ("m", true, Some(50)));
    assert_eq!((request.user.as_deref(), request.include_context, request.wants_store), (Some("u"), true, true));
    assert_eq!(request.last_user_text().as_deref(), Some("two\nthree"));
    assert!(request.ends_with_tool_result());
    let request = parse(r#"{"input":"hello"}"#);
    assert_eq!((request.last_user_text().as_deref(), request.ends_with_tool_result()), (Some("hello"), false));
}

#[test]
fn what_needs_a_memory_or_a_tool_of_the_providers_is_refused_by_its_name() {
    for (member, field) in [
        (r#""previous_response_id":"resp_1""#, "previous_response_id"),
        (r#""conversation":{"id":"conv_1"}"#, "conversation"),
        (r#""prompt":{"id":"pmpt_1"}"#, "prompt"),
        (r#""background":true"#, "background"),
        (r#""tools":[{"type":"function","name":"f"},{"type":"web_search"}]"#, "tools[1].type"),
        (r#""tools":[{"type":"file_search","vector_store_ids":[]}]"#, "tools[0].type"),
        (r#""tools":[{"type":"code_interpreter"}]"#, "tools[0].type"),
        (r#""tools":[{"type":"mcp","server_url":"https://tools.example"}]"#, "tools[0].type"),
        (r#""tools":[{"type":"computer_use_preview"}]"#, "tools[0].type"),
        (r#""tools":[{"type":"image_generation"}]"#, "tools[0].type"),
        (r#""tools":[{"type":"local_shell"}]"#, "tools[0].type"),
        (r#""tools":[{}]"#, "tools[0].type"),
    ] {
        let body = format!(r#"{{"input":"a",{member}}}"#);
        let error = ResponsesRequest::parse(body.as_bytes()).unwrap_err();
        assert_eq!(error.param(), Some(field), "{member}");
    }
    let reference = r#"{"input":[{"role":"user","content":"a"},{"type":"item_reference","id":"msg_1"}]}"#;
    assert!(refused(reference).starts_with("input[1].type must be another than item_reference"));
    // What says that it is not wanted asks for nothing.
    parse(
        r#"{"input":"a","previous_response_id":null,"conversation":null,"background":false,"prompt":null,"tools":[]}"#,
    );
}

#[test]
fn what_is_not_as_the_api_wants_it_is_named() {
    for (body, said) in [
        ("{}", "input is required"),
        (r#"{"input":[]}"#, "input is required"),
        (r#"{"input":7}"#, "input must be a string or an array of items"),
        (r#"{"input":"\ud800"}"#, "input has an invalid Unicode escape: a surrogate that is not one of a pair"),
        (r#"{"input":[7]}"#, "input[0] must be an object"),
        (r#"{"input":[{"id":"msg_1"}]}"#, "input[0].type must be a string such as message or function_call_output"),
        (r#"{"input":[{"role":"king","content":"a"}]}"#, "input[0].role must be user, assistant, system or developer"),
        (r#"{"input":[{"role":"user"}]}"#, "input[0].content must be a string or an array of parts"),
        (
            r#"{"input":[{"role":"user","content":[{"text":"a"}]}]}"#,
            "input[0].content[0].type must be a string such as input_text or input_image",
        ),
        (
            r#"{"input":[{"role":"user","content":[{"type":"input_text"}]}]}"#,
            "input[0].content[0].text must be a string",
        ),
        (r#"{"input":"a","stream":"yes"}"#, "stream must be true or false"),
        (r#"{"input":"a","store":1}"#, "store must be true or false"),
        (r#"{"input":"a","max_output_tokens":0}"#, "max_output_tokens must be a whole number, one or more"),
        (r#"{"input":"a","model":7}"#, "model must be a string"),
        (r#"{"input":"a","instructions":[]}"#, "instructions must be a string"),
        (r#"{"input":"a","tools":{}}"#, "tools must be an array"),
        (r#"{"input":"a","input":"b"}"#, "input occurs more than once"),
        (r#"{"input":"a","Max_Output_Tokens":9}"#, "Max_Output_Tokens must be written max_output_tokens"),
        (r#"{"input":[{"role":"user","Content":"b"}]}"#, "input[0].Content must be written content"),
    ] {
        assert_eq!(refused(body), said);
    }
    let many = format!(r#"{{"input":[{}]}}"#, vec![r#"{"type":"x"}"#; MAX_ITEMS + 1].join(","));
    assert_eq!(refused(&many), "input must be at most 65536 items and parts");
}
