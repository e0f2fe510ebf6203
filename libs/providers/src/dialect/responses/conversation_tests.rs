use serde_json::{Value, json};

use super::*;
use crate::hub::{Effort, ToolChoice};

fn refused(body: Value) -> String {
    let body = body.to_string();
    let error = ResponsesRequest::parse(body.as_bytes()).unwrap().conversation().unwrap_err();
    error.to_string()
}

#[test]
fn items_become_turns() {
    let body = json!({
        "model": "m", "instructions": "be kind", "max_output_tokens": 90, "stream": true, "safety_identifier": "u",
        "temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": false, "tool_choice": { "type": "function", "name": "f" },
        "reasoning": { "effort": "low", "summary": "auto" }, "metadata": { "team": "a" }, "store": false,
        "include": ["reasoning.encrypted_content"], "service_tier": "auto", "truncation": "disabled",
        "text": { "format": { "type": "json_schema", "name": "n", "schema": { "type": "object" }, "strict": true } },
        "tools": [{ "type": "function", "name": "f", "description": "d", "parameters": { "type": "object" }, "strict": true }],
        "input": [
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": [
                { "type": "input_text", "text": "look" },
                { "type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "low" },
                { "type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [{ "type": "summary_text", "text": "hm" }],
                "encrypted_content": "ragmux-signed:anthropic:sig" },
            { "type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "ragmux-redacted:anthropic:data" },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
                { "type": "output_text", "text": "looking", "annotations": [] }, { "type": "refusal", "refusal": "no" }] },
            { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{ }",
                "extra_content": { "google": { "thought_signature": "g" } } },
            { "type": "function_call_output", "call_id": "c1", "output": [{ "type": "input_text", "text": "42" }] },
            { "role": "user", "content": "and?" },
        ],
    });
    let body = body.to_string();
    let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
    let conversation = request.conversation().unwrap();
    assert!(conversation.dropped.is_empty(), "{:?}", conversation.dropped);
    let text = |block: &Block<'_>| match block {
        Block::Text { text, .. } => text.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(conversation.system.iter().map(text).collect::<Vec<_>>(), ["be kind", "be brief"]);
    let roles: Vec<_> = conversation.turns.iter().map(|turn| turn.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User]);
    let said: Vec<String> = conversation.turns.iter().map(|turn| format!("{:?}", turn.blocks)).collect();
    assert_eq!(
        said,
        [
            r#"[Text { text: "look", cache: None }, Image { source: Base64 { media_type: "image/png", data: "QUJD" }, detail: Some("low"), cache: None }, Document { media_type: "application/pdf", data: "QUJD", name: Some("a.pdf"), cache: None }]"#,
            r#"[Reasoning { text: "hm", signature: Some("ragmux-signed:anthropic:sig") }, RedactedReasoning { data: "ragmux-redacted:anthropic:data" }, Text { text: "looking", cache: None }, Text { text: "no", cache: None }, ToolCall { id: "c1", name: "f", arguments: "{ }", signature: Some("ragmux-signed:gemini:g") }]"#,
            r#"[ToolResult { call_id: "c1", name: None, content: [Text { text: "42", cache: None }], is_error: false, cache: None }, Text { text: "and?", cache: None }]"#,
        ]
    );
    assert_eq!(
        (conversation.output_limit, conversation.parallel_tools, conversation.stream),
        (Some(90), Some(false), true)
    );
    assert_eq!(
        (conversation.tool_choice, conversation.user.as_deref()),
        (Some(ToolChoice::Named("f".into())), Some("u"))
    );
    assert_eq!(conversation.reasoning.unwrap().effort, Some(Effort::Low));
    assert!(matches!(conversation.format, Some(Format::Schema { strict: Some(true), .. })));
    assert_eq!((conversation.tools.len(), conversation.settings.len()), (1, 2));
}

#[test]
fn what_has_no_place_is_listed_by_its_path() {
    let body = json!({
        "input": "a", "store": true, "truncation": "auto", "prompt_cache_key": "k", "max_tool_calls": 3, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"], "text": { "verbosity": "low" }, "reasoning": { "context": "all" },
        "stream_options": { "include_obfuscation": false }, "service_tier": "default", "x": [],
    });
    let body = body.to_string();
    let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
    let mut dropped = request.conversation().unwrap().dropped;
    dropped.sort();
    let expected = [
        "include",
        "max_tool_calls",
        "prompt_cache_key",
        "reasoning.context",
        "store",
        "text.verbosity",
        "top_logprobs",
        "truncation",
    ];
    assert_eq!(dropped, expected);
}

#[test]
fn what_an_item_or_a_part_has_beside_is_listed_too() {
    let cache = json!({ "type": "ephemeral" });
    let body = json!({
        "text": { "format": { "type": "json_object", "grammar": "g" } },
        "tools": [{ "type": "function", "name": "f", "defer_loading": true, "cache_control": null }],
        "tool_choice": { "type": "function", "name": "f", "why": "so" },
        "input": [
            { "role": "user", "id": "msg_0", "status": "completed", "phase": "commentary", "content": [
                { "type": "input_text", "text": "a", "cache_control": cache },
                { "type": "input_image", "image_url": "https://host.example/a.png", "file_id": "file_1", "detail": "low" },
                { "type": "input_file", "file_data": "QUJD", "file_url": "https://host.example", "detail": "high" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [{ "type": "summary_text", "text": "hm" }],
                "content": [{ "type": "reasoning_text", "text": "h m" }], "encrypted_content": "gAAA" },
            { "role": "assistant", "content": [
                { "type": "output_text", "text": "b", "logprobs": [],
                    "annotations": [{ "type": "url_citation", "url": "https://host.example" }] },
                { "type": "refusal", "refusal": "no", "text": "why" }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "n",
                "extra_content": { "other": {} } },
            { "type": "function_call_output", "call_id": "c1", "output": [{ "type": "input_text", "text": "1", "x": 1 }],
                "created_by": "me" },
        ],
    });
    let body = body.to_string();
    let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
    assert_eq!(
        request.conversation().unwrap().dropped,
        [
            "input[0].phase",
            "input[0].content[0].cache_control",
            "input[0].content[1].file_id",
            "input[0].content[2].detail",
            "input[0].content[2].file_url",
            "input[1].content",
            "input[1].encrypted_content",
            "input[2].content[0].annotations",
            "input[2].content[1].text",
            "input[3].extra_content",
            "input[3].namespace",
            "input[4].created_by",
            "input[4].output[0].x",
            "tools[0].defer_loading",
            "tool_choice.why",
            "text.format.grammar",
        ]
    );
}

#[test]
fn an_image_must_be_somewhere() {
    for url in ["", "a.png", "ftp://host.example/a", "data:image/png;base64,!!!", "data:image/png;base64,", "data:,a"] {
        let body = json!({ "input": [{ "role": "user", "content": [{ "type": "input_image", "image_url": url }] }] });
        let said = refused(body);
        assert!(said.starts_with("input[0].content[0].image_url must be an http or https URL"), "{url}: {said}");
    }
}

#[test]
fn what_would_change_the_meaning_is_refused() {
    let of = |item: Value| json!({ "input": [{ "role": "user", "content": "a" }, item] });
    let part = |part: Value| of(json!({ "role": "user", "content": [part] }));
    for (body, field) in [
        (of(json!({ "type": "web_search_call", "id": "ws_1" })), "input[1].type"),
        (of(json!({ "type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x" })), "input[1].type"),
        (of(json!({ "type": "function_call", "name": "f", "arguments": "{}" })), "input[1].call_id"),
        (of(json!({ "type": "function_call_output", "call_id": "c" })), "input[1].output"),
        (part(json!({ "type": "input_image", "file_id": "f" })), "input[1].content[0].image_url"),
        (part(json!({ "type": "input_image", "image_url": "ftp://host.example/a" })), "input[1].content[0].image_url"),
        (
            part(json!({ "type": "input_image", "image_url": "data:image/png;base64,!" })),
            "input[1].content[0].image_url",
        ),
        (part(json!({ "type": "input_file", "file_id": "f" })), "input[1].content[0].file_data"),
        (part(json!({ "type": "input_file", "file_url": "https://host.example" })), "input[1].content[0].file_data"),
        (part(json!({ "type": "input_audio" })), "input[1].content[0].type"),
        (json!({ "input": [{ "role": "system", "content": "rules" }] }), "input"),
        (json!({ "input": "a", "tools": [{ "type": "custom", "name": "f" }] }), "tools[0].type"),
        (json!({ "input": "a", "tool_choice": { "type": "web_search" } }), "tool_choice"),
        (json!({ "input": "a", "text": { "format": { "type": "grammar" } } }), "text.format.type"),
        (json!({ "input": "a", "reasoning": { "effort": "all" } }), "reasoning.effort"),
        (json!({ "input": "a", "temperature": "hot" }), "temperature"),
    ] {
        assert!(refused(body.clone()).starts_with(&format!("{field} must be")), "{body}: {}", refused(body.clone()));
    }
}

#[test]
fn only_the_tools_that_are_allowed_are_offered() {
    let tool = |name: &str| json!({ "type": "function", "name": name });
    let body = json!({ "input": "a", "tools": [tool("f"), tool("g")], "tool_choice": {
        "type": "allowed_tools", "mode": "required", "tools": [tool("g")] } });
    let body = body.to_string();
    let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
    let conversation = request.conversation().unwrap();
    assert_eq!(conversation.tools.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), ["g"]);
    assert_eq!(conversation.tool_choice, Some(ToolChoice::Required));
}

#[test]
fn a_thought_of_another_provider_comes_without_its_seal() {
    let body = json!({ "input": [
        { "type": "reasoning", "id": "rs_1", "summary": [{ "type": "summary_text", "text": "a" }, { "type": "summary_text", "text": "b" }],
            "encrypted_content": "gAAA" },
        { "type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA" }] });
    let body = body.to_string();
    let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
    let conversation = request.conversation().unwrap();
    assert_eq!(format!("{:?}", conversation.turns[0].blocks), r#"[Reasoning { text: "a\n\nb", signature: None }]"#);
}

#[test]
fn the_output_of_a_call_that_nobody_made_is_refused() {
    let call = json!({ "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" });
    let output = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "r" });
    for (input, at) in [
        (json!([output("a")]), Some(0)),
        (json!([call, output("b")]), Some(1)),
        (json!([output("a"), call]), Some(0)),
        (json!([call, output("a")]), None),
    ] {
        let body = json!({ "input": input }).to_string();
        let request = ResponsesRequest::parse(body.as_bytes()).unwrap();
        let refused = request.conversation().err().map(|error| error.to_string());
        let said = |at| format!("input[{at}].call_id must be that of an earlier call of a tool");
        assert_eq!(refused, at.map(said), "{input}");
    }
}
