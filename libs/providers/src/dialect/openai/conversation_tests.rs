use serde_json::{Value, json};

use super::*;
use crate::hub::{Block, ImageSource, Role};

fn read<T>(body: &Value, look: impl FnOnce(&Conversation<'_>) -> T) -> T {
    let body = body.to_string();
    let request = ChatRequest::parse(body.as_bytes()).unwrap();
    look(&request.conversation().unwrap())
}

fn refused(body: &Value) -> String {
    let body = body.to_string();
    let request = ChatRequest::parse(body.as_bytes()).unwrap();
    request.conversation().unwrap_err().to_string()
}

fn with(members: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "q" }] });
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    body
}

fn cached(cache: &Option<&RawValue>) -> &'static str {
    if cache.is_some() { "*" } else { "" }
}

fn show(block: &Block<'_>) -> String {
    match block {
        Block::Text { text, cache } => format!("{text}{}", cached(cache)),
        Block::Image { source: ImageSource::Url(url), detail, cache } => {
            format!("<{url} {}>{}", detail.as_deref().unwrap_or("-"), cached(cache))
        }
        Block::Image { source: ImageSource::Base64 { media_type, data }, .. } => format!("<{media_type} {data}>"),
        Block::Document { media_type, data, name, .. } => {
            format!("<{} {media_type} {data}>", name.as_deref().unwrap_or("-"))
        }
        Block::Reasoning { text, signature } => format!("({text} {})", signature.as_deref().unwrap_or("-")),
        Block::RedactedReasoning { data } => format!("(? {data})"),
        Block::ToolCall { id, name, arguments, signature } => {
            format!("{id}={name}({arguments}){}", signature.as_deref().unwrap_or(""))
        }
        Block::ToolResult { call_id, name, content, cache, .. } => {
            let content: Vec<_> = content.iter().map(show).collect();
            format!("{call_id}:{}={}{}", name.as_deref().unwrap_or("-"), content.join("+"), cached(cache))
        }
    }
}

/// The rules, then each turn as its side and what is said.
fn told(messages: Value) -> Vec<String> {
    read(&json!({ "messages": messages }), |conversation| {
        let rules = conversation.system.iter().map(show).collect::<Vec<_>>().join(" | ");
        let turns = conversation.turns.iter().map(|turn| {
            let side = if turn.role == Role::User { "U" } else { "A" };
            format!("{side}: {}", turn.blocks.iter().map(show).collect::<Vec<_>>().join(" | "))
        });
        std::iter::once(rules).chain(turns).collect()
    })
}

fn call(id: &str, name: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": "{\"a\": 1}" } })
}

#[test]
fn rules_are_gathered_and_turns_alternate() {
    let told = told(json!([
        { "role": "system", "content": "be kind" },
        { "role": "user", "content": "a" },
        { "role": "user", "content": [{ "type": "text", "text": "b", "cache_control": { "type": "ephemeral" } }] },
        { "role": "developer", "content": [{ "type": "text", "text": "be brief" }], "cache_control": {} },
        { "role": "user", "content": "" },
        { "role": "assistant", "content": [{ "type": "text", "text": "c" }, { "type": "refusal", "refusal": "d" }] },
        { "role": "assistant", "content": null, "refusal": "e" },
        { "role": "user", "content": "f" },
    ]));
    assert_eq!(told, ["be kind | be brief*", "U: a | b*", "A: c | d | e", "U: f"]);
}

#[test]
fn results_of_tools_stand_right_behind_their_calls() {
    let messages = json!([
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": "one moment", "tool_calls": [call("1", "f"), call("2", "g")] },
        { "role": "user", "content": "hurry" },
        { "role": "tool", "tool_call_id": "1", "content": "r1" },
        { "role": "assistant", "content": "nearly", "tool_calls": [call("3", "h")] },
        { "role": "tool", "tool_call_id": "3", "content": [{ "type": "text", "text": "r3" }] },
        { "role": "tool", "tool_call_id": "2", "content": "r2", "cache_control": { "type": "ephemeral" } },
    ]);
    assert_eq!(
        told(messages),
        [
            "",
            "U: q",
            "A: one moment | 1=f({\"a\": 1}) | 2=g({\"a\": 1})",
            "U: 1:f=r1 | 2:g=r2* | hurry",
            "A: nearly | 3=h({\"a\": 1})",
            "U: 3:h=r3",
        ]
    );
}

#[test]
fn functions_of_the_old_form_get_ids() {
    let messages = json!([
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": null, "function_call": { "name": "f", "arguments": "{}" } },
        { "role": "function", "name": "f", "content": "r" },
    ]);
    assert_eq!(told(messages), ["", "U: q", "A: call_1=f({})", "U: call_1:f=r"]);
    let body = with(json!({ "functions": [{ "name": "f" }], "function_call": { "name": "f" } }));
    read(&body, |conversation| {
        assert_eq!(conversation.tools[0].name, "f");
        assert_eq!(conversation.tool_choice, Some(ToolChoice::Named("f".into())));
        assert_eq!(conversation.parallel_tools, Some(false));
    });
}

#[test]
fn images_and_files_are_where_they_are() {
    let messages = json!([{ "role": "user", "content": [
        { "type": "image_url", "image_url": { "url": "https://host.example/a.png", "detail": "low" }, "cache_control": {} },
        { "type": "image_url", "image_url": "data:image/PNG;base64,QUJD" },
        { "type": "file", "file": { "filename": "a.txt", "file_data": "data:text/plain;base64,QQ==" } },
        { "type": "file", "file": { "file_data": "QQ==" } },
    ] }]);
    assert_eq!(
        told(messages),
        [
            "",
            "U: <https://host.example/a.png low>* | <image/png QUJD> | <a.txt text/plain QQ==> | <- application/pdf QQ==>"
        ]
    );
}

#[test]
fn thoughts_come_back_with_their_signatures() {
    let messages = json!([
        { "role": "user", "content": "q" },
        { "role": "assistant", "reasoning_content": "ab", "content": "x", "reasoning_details": [
            { "type": "reasoning.text", "text": "a", "signature": "s", "index": 0 },
            { "type": "reasoning.encrypted", "data": "d", "index": 1 },
            { "type": "reasoning.text", "text": "" },
            { "type": "other" },
        ], "tool_calls": [{ "id": "1", "function": { "name": "f", "arguments": { "a": 1 } },
            "extra_content": { "google": { "thought_signature": "g" } } }] },
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": "y", "reasoning": "bare" },
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": [{ "type": "text", "text": "m1" }, { "type": "text", "text": "m2" }] },
            { "type": "text", "text": "z" },
        ] },
    ]);
    assert_eq!(
        told(messages),
        [
            "",
            "U: q",
            "A: (a ragmux-signed:anthropic:s) | (? ragmux-redacted:anthropic:d) | x | 1=f({\"a\":1})ragmux-signed:gemini:g",
            "U: q",
            "A: (bare -) | y",
            "U: q",
            "A: (m1m2 -) | z"
        ]
    );
}

#[test]
fn tools_and_what_is_chosen_of_them_are_read() {
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let body = with(json!({
        "tools": [
            { "type": "function", "cache_control": { "type": "ephemeral" }, "function": {
                "name": "f", "description": "does f", "strict": true, "parameters": { "type": "object" } } },
            tool("g"),
        ],
        "parallel_tool_calls": false,
        "functions": [{ "name": "old" }],
    }));
    read(&body, |conversation| {
        let tool = &conversation.tools[0];
        assert_eq!((tool.name.as_ref(), tool.description.as_deref(), tool.strict), ("f", Some("does f"), Some(true)));
        assert_eq!(tool.parameters.unwrap().get(), r#"{"type":"object"}"#);
        assert!(tool.cache.is_some());
        assert_eq!((conversation.tools.len(), conversation.parallel_tools), (2, Some(false)));
    });
    for (choice, read_as) in [
        (json!("auto"), ToolChoice::Auto),
        (json!("none"), ToolChoice::None),
        (json!("required"), ToolChoice::Required),
        (tool("g"), ToolChoice::Named("g".into())),
    ] {
        let body = with(json!({ "tools": [tool("f"), tool("g")], "tool_choice": choice }));
        read(&body, |conversation| assert_eq!(conversation.tool_choice.as_ref(), Some(&read_as)));
    }
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [tool("g")] } });
    read(&with(json!({ "tools": [tool("f"), tool("g")], "tool_choice": allowed })), |conversation| {
        assert_eq!(conversation.tools.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), ["g"]);
        assert_eq!(conversation.tool_choice, Some(ToolChoice::Required));
    });
}

#[test]
fn what_steers_the_answer_is_read() {
    let body = with(json!({
        "stream": true, "temperature": 0.5, "top_p": 1, "top_k": 4, "seed": 7, "frequency_penalty": -1,
        "presence_penalty": 2, "max_tokens": 5, "max_completion_tokens": 9, "stop": ["a", "b"], "safety_identifier": "s",
        "response_format": { "type": "json_schema", "json_schema": { "name": "n", "strict": true, "schema": { "a": 1 } } },
    }));
    read(&body, |conversation| {
        let settings: Vec<_> =
            conversation.settings.iter().map(|setting| (setting.name, setting.value.get())).collect();
        assert_eq!(
            settings,
            [
                ("temperature", "0.5"),
                ("top_p", "1"),
                ("top_k", "4"),
                ("seed", "7"),
                ("frequency_penalty", "-1"),
                ("presence_penalty", "2"),
            ]
        );
        assert_eq!((conversation.output_limit, conversation.stream), (Some(9), true));
        assert_eq!((conversation.stop.join(" "), conversation.user.as_deref()), ("a b".to_owned(), Some("s")));
        assert!(matches!(&conversation.format, Some(Format::Schema { name, schema, strict: Some(true), .. })
            if name == "n" && schema.get() == r#"{"a":1}"#));
        assert!(conversation.dropped.is_empty());
    });
    read(&with(json!({ "stop": "x", "response_format": { "type": "json_object" } })), |conversation| {
        assert_eq!(conversation.stop, ["x"]);
        assert!(matches!(conversation.format, Some(Format::Json)));
    });
    for (members, name, effort, budget) in [
        (json!({ "reasoning_effort": "xhigh" }), "reasoning_effort", Some(Effort::Highest), None),
        (json!({ "reasoning": { "effort": "low", "max_tokens": 3 } }), "reasoning", Some(Effort::Low), Some(3)),
        (json!({ "reasoning": { "enabled": false } }), "reasoning", Some(Effort::None), None),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 8 } }), "thinking", None, Some(8)),
        (json!({ "thinking": { "type": "disabled" } }), "thinking", Some(Effort::None), None),
    ] {
        read(&with(members), |conversation| {
            assert_eq!(conversation.reasoning, Some(Reasoning { name, effort, budget }));
        });
    }
}

#[test]
fn what_has_no_place_is_listed_unless_it_asks_for_nothing() {
    let body = json!({
        "messages": [
            { "role": "user", "name": "ann", "content": [{ "type": "text", "text": "q", "mark": 1 }] },
            { "role": "assistant", "content": "a", "annotations": [], "audio": { "id": "x" } },
            { "role": "user", "name": "bob", "content": "q" },
        ],
        "n": 2, "logprobs": true, "top_logprobs": 0, "logit_bias": { "1": 2 }, "prediction": {}, "store": false,
        "service_tier": "auto", "modalities": [ "text" ], "verbosity": "low", "metadata": { "a": "b" }, "ragmux": {},
        "stream_options": { "include_usage": true, "include_obfuscation": true },
        "reasoning": { "effort": "low", "exclude": true },
    });
    read(&body, |conversation| {
        let mut dropped = conversation.dropped.clone();
        dropped.sort();
        assert_eq!(
            dropped,
            [
                "logit_bias",
                "logprobs",
                "messages[].audio",
                "messages[].content[].mark",
                "messages[].name",
                "metadata",
                "n",
                "reasoning.exclude",
                "stream_options.include_obfuscation",
                "verbosity",
            ]
        );
    });
    let body = json!({
        "messages": [
            { "role": "user", "content": [
                { "type": "image_url", "image_url": { "url": "https://host.example/a.png", "mark": 1 } },
                { "type": "file", "file": { "filename": "a.pdf", "file_data": "QQ==", "mark": 1 } },
            ] },
            { "role": "assistant", "tool_calls": [{ "id": "1", "type": "function", "index": 0, "mark": 1,
                "cache_control": {"type": "ephemeral"}, "extra_content": { "x": 1 },
                "function": { "name": "f", "arguments": "{}", "mark": 1 } }] },
            { "role": "user", "content": "q" },
        ],
        "tools": [{ "type": "function", "mark": 1, "function": { "name": "f", "mark": 1 } }],
        "functions": [{ "name": "g" }], "function_call": "auto",
        "tool_choice": { "type": "function", "function": { "name": "f" }, "mark": 1 },
        "user": "u", "safety_identifier": "s", "web_search_options": {},
        "thinking": { "type": "adaptive", "display": "omitted" },
        "response_format": { "type": "json_schema", "mark": 1, "json_schema": { "name": "n", "schema": {}, "mark": 1 } },
    });
    read(&body, |conversation| {
        let mut dropped = conversation.dropped.clone();
        dropped.sort();
        assert_eq!(
            dropped,
            [
                "function_call",
                "functions",
                "messages[0].content[0].image_url.mark",
                "messages[0].content[1].file.mark",
                "messages[1].tool_calls[0].cache_control",
                "messages[1].tool_calls[0].extra_content",
                "messages[1].tool_calls[0].function.mark",
                "messages[1].tool_calls[0].mark",
                "response_format.json_schema.mark",
                "response_format.mark",
                "thinking.display",
                "thinking.type",
                "tool_choice.mark",
                "tools[0].function.mark",
                "tools[0].mark",
                "user",
                "web_search_options",
            ]
        );
    });
    read(&with(json!({ "tool_choice": "required" })), |conversation| assert_eq!(conversation.dropped, ["tool_choice"]));
    let many: serde_json::Map<_, _> = (0..500).map(|at| (format!("field{at}"), 1.into())).collect();
    read(&with(many.into()), |conversation| assert_eq!(conversation.dropped.len(), 128));
}

#[test]
fn what_cannot_be_said_elsewhere_is_refused_by_its_field() {
    let said = |message: Value| json!({ "messages": [message] });
    let part = |part: Value| said(json!({ "role": "user", "content": [part] }));
    let one_call = |call: Value| said(json!({ "role": "assistant", "tool_calls": [call] }));
    for (body, field) in [
        (said(json!({ "role": "system", "content": "only rules" })), "messages"),
        (said(json!({ "role": "user", "content": "" })), "messages"),
        (said(json!({ "role": "robot", "content": "a" })), "messages[0].role"),
        (part(json!({ "type": "input_audio", "input_audio": {} })), "messages[0].content[0].type"),
        (part(json!({ "type": "image_url" })), "messages[0].content[0].image_url"),
        (part(json!({ "type": "image_url", "image_url": {} })), "messages[0].content[0].image_url.url"),
        (part(json!({ "type": "image_url", "image_url": "data:,x" })), "messages[0].content[0].image_url"),
        (
            part(json!({ "type": "image_url", "image_url": "data:image/png;base64,!!!" })),
            "messages[0].content[0].image_url",
        ),
        (part(json!({ "type": "image_url", "image_url": "ftp://host.example/a" })), "messages[0].content[0].image_url"),
        (part(json!({ "type": "file", "file": { "file_id": "f" } })), "messages[0].content[0].file.file_data"),
        (
            said(json!({ "role": "system", "content": [{ "type": "image_url", "image_url": "a" }] })),
            "messages[0].content[0].type",
        ),
        (said(json!({ "role": "tool", "content": "r" })), "messages[0].tool_call_id"),
        (said(json!({ "role": "tool", "tool_call_id": "no", "content": "r" })), "messages[0].tool_call_id"),
        (said(json!({ "role": "function", "name": "no", "content": "r" })), "messages[0].name"),
        (said(json!({ "role": "assistant", "tool_calls": {} })), "messages[0].tool_calls"),
        (one_call(json!({ "function": { "name": "f" } })), "messages[0].tool_calls[0].id"),
        (one_call(json!({ "id": "1", "function": {} })), "messages[0].tool_calls[0].function.name"),
        (one_call(json!({ "id": "1", "custom": {} })), "messages[0].tool_calls[0].function"),
        (with(json!({ "tools": {} })), "tools"),
        (with(json!({ "tools": vec![1; 65_537] })), "tools"),
        (with(json!({ "tools": [{ "type": "web_search" }] })), "tools[0].type"),
        (with(json!({ "tools": [{ "type": "function" }] })), "tools[0].function"),
        (with(json!({ "tools": [{ "function": { "name": "f", "parameters": 1 } }] })), "tools[0].function.parameters"),
        (with(json!({ "tool_choice": "any" })), "tool_choice"),
        (with(json!({ "parallel_tool_calls": 1 })), "parallel_tool_calls"),
        (with(json!({ "response_format": { "type": "xml" } })), "response_format.type"),
        (
            with(json!({ "response_format": { "type": "json_schema", "json_schema": {} } })),
            "response_format.json_schema.schema",
        ),
        (with(json!({ "reasoning_effort": "much" })), "reasoning_effort"),
        (with(json!({ "stop": [1] })), "stop"),
        (with(json!({ "temperature": "hot" })), "temperature"),
    ] {
        let said = refused(&body);
        assert!(said.starts_with(&format!("{field} must be ")), "{said}");
    }
}
