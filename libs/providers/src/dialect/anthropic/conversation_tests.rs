use serde_json::Value;

use super::super::body;
use super::*;
use crate::dialect::golden::PLAIN;
use crate::dialect::openai::Outgoing;

const OUTGOING: Outgoing<'static> = Outgoing { model: "claude-real-1", ..PLAIN };

/// Reads a request into the common form and writes it again.
fn around(request: &str) -> (Value, Vec<String>) {
    let request = MessagesRequest::parse(request.as_bytes()).unwrap();
    let conversation = request.conversation().unwrap();
    let mut dropped: Vec<String> = conversation.dropped.iter().map(|path| path.clone().into_owned()).collect();
    let mut lost = Vec::new();
    let body = body(&conversation, &OUTGOING, &mut lost).unwrap();
    dropped.extend(lost.into_iter().filter_map(|lost| request.name_of(lost)));
    (serde_json::from_slice(&body).unwrap(), dropped)
}

#[test]
fn what_the_common_form_can_say_comes_out_as_it_went_in() {
    for golden in [
        include_str!("golden/plain.request.json"),
        include_str!("golden/settings.request.json"),
        include_str!("golden/tools.request.json"),
        include_str!("golden/vision.request.json"),
        include_str!("golden/schema.request.json"),
        include_str!("golden/thinking.request.json"),
    ] {
        let (sent, dropped) = around(golden);
        assert_eq!(sent, serde_json::from_str::<Value>(golden).unwrap());
        assert!(dropped.is_empty());
    }
}

#[test]
fn what_has_no_place_is_listed() {
    let (_, dropped) = around(
        r#"{"max_tokens":9,"model":"m","service_tier":"standard_only","container":null,"context_management":{"edits":[1]},
            "cache_control":{"type":"ephemeral"},"output_config":{"effort":"low","task_budget":1},"thinking":{"type":"disabled"},
            "messages":[{"role":"user","content":[{"type":"text","text":"a","citations":[{"x":1}]},
            {"type":"document","source":{"type":"text","media_type":"text/plain","data":"d"},"citations":{"enabled":true}}]}],
            "tools":[{"name":"f","input_schema":{"type":"object"},"input_examples":[{}],"defer_loading":false}]}"#,
    );
    assert_eq!(
        dropped,
        [
            "messages[0].content[0].citations",
            "messages[0].content[1].citations",
            "tools[0].input_examples",
            "output_config.task_budget",
            "service_tier",
            "context_management",
            "cache_control",
        ]
    );
}

#[test]
fn nothing_is_lost_unlisted() {
    let listed = |text: &str| {
        let request = MessagesRequest::parse(text.as_bytes()).unwrap();
        let dropped = request.conversation().unwrap().dropped;
        dropped.iter().map(|path| path.clone().into_owned()).collect::<Vec<_>>()
    };
    let mut dropped = listed(
        r#"{"max_tokens":9,"metadata":{"user_id":"u","team":"t"},"tool_choice":{"type":"auto","mark":1},
            "thinking":{"type":"enabled","budget_tokens":2000,"display":"omitted"},
            "output_config":{"format":{"type":"json_schema","schema":{},"mark":1}},"output_format":{"type":"json_schema"},
            "messages":[{"role":"user","content":[{"type":"text","text":"a","mark":1},
            {"type":"image","mark":1,"source":{"type":"url","url":"https://host.example/a","mark":1}}],"mark":1},
            {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{},"caller":{"type":"direct"},
            "cache_control":{"type":"ephemeral"}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r","mark":1}]},
            {"role":"assistant","content":""}]}"#,
    );
    dropped.sort();
    assert_eq!(
        dropped,
        [
            "messages[0].content[0].mark",
            "messages[0].content[1].mark",
            "messages[0].content[1].source.mark",
            "messages[0].mark",
            "messages[1].content[0].cache_control",
            "messages[1].content[0].caller",
            "messages[2].content[0].mark",
            "messages[3]",
            "metadata.team",
            "output_config.format.mark",
            "output_format",
            "thinking.display",
            "tool_choice",
            "tool_choice.mark",
        ]
    );
    for (thinking, path) in [
        (r#"{"type":"adaptive"}"#, "thinking"),
        (r#"{"type":"unheard of"}"#, "thinking"),
        (r#"{"type":"disabled","budget_tokens":9}"#, "thinking.budget_tokens"),
    ] {
        let body = format!(r#"{{"max_tokens":9,"thinking":{thinking},"messages":[{{"role":"user","content":"a"}}]}}"#);
        assert_eq!(listed(&body), [path], "{thinking}");
    }
}

#[test]
fn somebody_has_to_say_something_that_is_theirs_to_say() {
    for (messages, field) in [
        (r#"{"role":"user","content":""}"#, "messages"),
        (r#"{"role":"user","content":[{"type":"text","text":""}]}"#, "messages"),
        (r#"{"role":"user","content":[{"type":"thinking","thinking":"t","signature":"s"}]}"#, "messages"),
        (
            r#"{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]}"#,
            "messages[0].content",
        ),
        (r#"{"role":"user","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}"#, "messages[0].content"),
    ] {
        let body = format!(r#"{{"max_tokens":9,"messages":[{messages}]}}"#);
        let request = MessagesRequest::parse(body.as_bytes()).unwrap();
        assert_eq!(request.conversation().unwrap_err().param(), Some(field), "{messages}");
    }
}

#[test]
fn how_much_thought_is_asked_for() {
    let asked = |members: &str| {
        let body = format!(r#"{{"max_tokens":9{members},"messages":[{{"role":"user","content":"a"}}]}}"#);
        MessagesRequest::parse(body.as_bytes()).unwrap().conversation().unwrap().reasoning
    };
    let reasoning = |name, effort, budget| Some(Reasoning { name, effort, budget });
    assert_eq!(asked(""), None);
    assert_eq!(asked(r#","thinking":{"type":"disabled"}"#), None);
    assert_eq!(asked(r#","thinking":{"type":"adaptive"}"#), None);
    assert_eq!(
        asked(r#","thinking":{"type":"enabled","budget_tokens":2048}"#),
        reasoning("thinking", None, Some(2048))
    );
    for (word, effort) in
        [("low", Effort::Low), ("medium", Effort::Medium), ("high", Effort::High), ("max", Effort::Highest)]
    {
        let members = format!(r#","thinking":{{"type":"adaptive"}},"output_config":{{"effort":"{word}"}}"#);
        assert_eq!(asked(&members), reasoning("output_config.effort", Some(effort), None));
    }
}

#[test]
fn rules_may_stand_among_the_messages() {
    let body = br#"{"max_tokens":9,"system":"one","messages":[{"role":"user","content":"a"},
        {"role":"system","content":"two"},{"role":"user","content":"b"}]}"#;
    let request = MessagesRequest::parse(body).unwrap();
    let conversation = request.conversation().unwrap();
    assert_eq!((conversation.system.len(), conversation.turns.len()), (2, 1));
}

#[test]
fn what_would_change_the_meaning_is_refused() {
    for (members, field) in [
        (r#""tools":[{"type":"web_search_20250305","name":"web_search"}]"#, "tools[0].type"),
        (r#""tools":[{"input_schema":{}}]"#, "tools[0].name"),
        (r#""mcp_servers":[{"url":"https://tools.example"}]"#, "mcp_servers"),
        (r#""tool_choice":{"type":"tool"}"#, "tool_choice.name"),
        (r#""tool_choice":{"type":"maybe"}"#, "tool_choice.type"),
        (r#""tool_choice":7"#, "tool_choice"),
        (r#""temperature":"warm""#, "temperature"),
        (r#""stop_sequences":[7]"#, "stop_sequences"),
        (r#""thinking":{"type":"enabled"}"#, "thinking.budget_tokens"),
        (r#""output_config":{"effort":"some"}"#, "output_config.effort"),
        (r#""output_format":{"type":"xml"}"#, "output_format.type"),
        (r#""system":[{"type":"image","source":{"type":"url","url":"https://host.example/a"}}]"#, "system"),
    ] {
        let body = format!(r#"{{"max_tokens":9,{members},"messages":[{{"role":"user","content":"a"}}]}}"#);
        let request = MessagesRequest::parse(body.as_bytes()).unwrap();
        assert_eq!(request.conversation().unwrap_err().param(), Some(field), "{members}");
    }
    for (block, field) in [
        (r#"{"type":"container_upload","file_id":"f"}"#, "type"),
        (r#"{"type":"image","source":{"type":"file","file_id":"f"}}"#, "source.type"),
        (r#"{"type":"image"}"#, "source"),
        (r#"{"type":"image","source":{"type":"url","url":"ftp://host.example/a"}}"#, "source"),
        (r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"!!!"}}"#, "source"),
        (r#"{"type":"document","source":{"type":"url","url":"x"}}"#, "source.type"),
        (r#"{"type":"tool_result","content":"a"}"#, "tool_use_id"),
        (r#"{"type":"tool_use","name":"f","input":{}}"#, "id"),
    ] {
        let body = format!(r#"{{"max_tokens":9,"messages":[{{"role":"user","content":[{block}]}}]}}"#);
        let request = MessagesRequest::parse(body.as_bytes()).unwrap();
        let refused = request.conversation().unwrap_err();
        assert_eq!(refused.param(), Some(&*format!("messages[0].content[0].{field}")), "{block}");
    }
}

#[test]
fn the_result_of_a_call_that_nobody_made_is_refused() {
    let used = r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}"#;
    let result = |id: &str| {
        let result = format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"r"}}"#);
        format!(r#"{{"role":"user","content":[{{"type":"text","text":"a"}},{result}]}}"#)
    };
    for (messages, at) in [
        (result("1"), Some(0)),
        (format!("{used},{}", result("2")), Some(1)),
        // The call comes too late.
        (format!("{},{used}", result("1")), Some(0)),
        (format!("{used},{}", result("1")), None),
        (format!("{used},{},{}", result("1"), result("1")), None),
    ] {
        let body = format!(r#"{{"max_tokens":9,"messages":[{messages}]}}"#);
        let request = MessagesRequest::parse(body.as_bytes()).unwrap();
        let refused = request.conversation().err().map(|error| error.to_string());
        let said = |at| format!("messages[{at}].content[1].tool_use_id must be that of an earlier call of a tool");
        assert_eq!(refused, at.map(said), "{messages}");
    }
}
