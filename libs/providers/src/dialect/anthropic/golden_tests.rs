//! Requests and answers as the API's reference shows them.

use bytes::Bytes;
use serde_json::Value;

use super::*;
use crate::dialect::golden::{
    PLAIN, asks, call, called, document, inline, picture, raw, read_events, result, says, set, text, tool, used, words,
};
use crate::dialect::openai::{Outgoing, OutputBound, RequestError};
use crate::error::UpstreamError;
use crate::hub::{
    Block, Conversation, Effort, Finish, Format, ImageSource, Part, Reader, Reasoning, Role, SettingKind, Tool,
    ToolChoice, Whole,
};
use crate::usage::Usage;

fn read_stream(transcript: &str) -> (Whole, Result<(), UpstreamError>, MessageReader) {
    let mut reader = MessageReader::new(None);
    let (whole, ended) = read_events(&mut reader, transcript);
    (whole, ended, reader)
}

#[test]
fn an_answer_reads_the_same_streamed_and_whole() {
    let thought = || {
        vec![
            Part::Reasoning {
                text: "Nine times seven.".to_owned(),
                signature: Some("ragmux-signed:anthropic:c2lnbmVk".to_owned()),
            },
            Part::RedactedReasoning("ragmux-redacted:anthropic:ZW5jcnlwdGVk".to_owned()),
            text("63"),
        ]
    };
    let cached = Usage { cached_tokens: 200, cache_write_tokens: 40, ..used(250, 500) };
    for (stream, whole, parts, finish, usage) in [
        (
            include_str!("golden/text.sse"),
            include_str!("golden/text.json"),
            vec![text("The lamp is lit \u{2014} \u{e0} bient\u{f4}t.")],
            Finish::Stop,
            used(14, 11),
        ),
        (
            include_str!("golden/tools.sse"),
            include_str!("golden/tools.json"),
            vec![
                text("Looking at both."),
                call("toolu_tide", "tide_table", r#"{"harbour": "Saint-Malo"}"#),
                call("toolu_now", "clock", "{}"),
            ],
            Finish::ToolCalls,
            used(412, 63),
        ),
        (
            include_str!("golden/reasoning.sse"),
            include_str!("golden/reasoning.json"),
            thought(),
            Finish::Stop,
            Usage { reasoning_tokens: 19, ..used(30, 25) },
        ),
        (
            include_str!("golden/cached.sse"),
            include_str!("golden/cached.json"),
            vec![text(r#"{"colour":"red"}"#)],
            Finish::Length,
            cached,
        ),
        (
            include_str!("golden/stopped.sse"),
            include_str!("golden/stopped.json"),
            vec![text("One, two, ")],
            Finish::StopSequence(Some("three".to_owned())),
            used(9, 6),
        ),
        (
            include_str!("golden/refused.sse"),
            include_str!("golden/refused.json"),
            vec![text("I would rather not.")],
            Finish::ContentFilter,
            used(9, 7),
        ),
    ] {
        let (streamed, ended, reader) = read_stream(stream);
        ended.unwrap();
        assert!(reader.is_over() && reader.is_complete());
        assert_eq!(streamed.parts, parts);
        assert_eq!((streamed.finish.as_ref(), streamed.usage), (Some(&finish), Some(usage)));
        let whole = read_whole(&Bytes::from_static(whole.as_bytes()), None).unwrap();
        assert_eq!((&whole.id, &whole.model), (&streamed.id, &streamed.model));
        assert_eq!((whole.finish, whole.usage), (Some(finish), Some(usage)));
        // White space within the input of a tool is the provider's to choose.
        let plain = |parts: &[Part]| -> Vec<Part> {
            let plain = |part: &Part| match part {
                Part::ToolCall { id, name, arguments, .. } => {
                    call(id, name, &serde_json::from_str::<Value>(arguments).unwrap().to_string())
                }
                part => part.clone(),
            };
            parts.iter().map(plain).collect()
        };
        assert_eq!(plain(&whole.parts), plain(&streamed.parts));
    }
}

#[test]
fn usage_is_not_told_before_the_end_and_a_reason_is_enough_for_one() {
    let stream = include_str!("golden/cached.sse");
    let up_to = |name: &str| stream.split_at(stream.find(name).unwrap()).0;
    let (begun, ended, reader) = read_stream(up_to("event: message_delta"));
    ended.unwrap();
    assert_eq!((begun.usage, begun.finish, reader.is_complete()), (None, None, false));
    let (whole, ended, reader) = read_stream(up_to("event: message_stop"));
    ended.unwrap();
    assert!(whole.usage.is_some() && reader.is_complete() && !reader.is_over());
}

#[test]
fn an_error_in_a_stream_has_the_status_of_its_type() {
    let (said, ended, _) = read_stream(include_str!("golden/overloaded.sse"));
    assert_eq!(said.parts, [text("So far")]);
    let error = ended.unwrap_err();
    assert_eq!((error.status(), error.message().as_str()), (503, "Overloaded"));
    for (kind, status, is_retryable) in [
        ("overloaded_error", 503, true),
        ("rate_limit_error", 429, true),
        ("api_error", 502, false),
        ("timeout_error", 504, true),
        ("invalid_request_error", 400, false),
        ("request_too_large", 413, false),
        ("authentication_error", 502, false),
        ("permission_error", 502, false),
        ("not_found_error", 404, false),
        ("something_new", 502, false),
    ] {
        let event = format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"so it is"}}}}"#);
        let mut events = Vec::new();
        let error = MessageReader::new(None).read(Some("error"), event.as_bytes(), &mut events).unwrap_err();
        assert_eq!((error.status(), error.is_retryable()), (status, is_retryable), "{kind}");
        assert!(read_whole(&Bytes::from(event), None).is_err());
    }
}

#[test]
fn what_is_no_event_of_the_api_is_no_answer() {
    let mut events = Vec::new();
    let mut reader = MessageReader::new(None);
    for nothing in [r#"{"type":"ping"}"#, r#"{"type":"news","index":0}"#, "{}"] {
        reader.read(None, nothing.as_bytes(), &mut events).unwrap();
    }
    for start in [r#""type":"server_tool_use","id":"a","name":"web_search","input":{}"#, r#""type":"news""#] {
        let event = format!(r#"{{"type":"content_block_start","index":0,"content_block":{{{start}}}}}"#);
        let mut none = Vec::new();
        reader.read(None, event.as_bytes(), &mut none).unwrap();
        assert!(none.is_empty());
    }
    let delta = br#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}"#;
    reader.read(None, delta, &mut events).unwrap();
    assert!(events.is_empty() && !reader.is_complete());
    assert!(reader.read(None, b"[DONE]", &mut events).is_err());
    for body in ["[]", "{}", r#"{"content":"text"}"#] {
        assert!(read_whole(&Bytes::from_static(body.as_bytes()), None).is_err());
    }
}

const OUTGOING: Outgoing<'static> = Outgoing { model: "claude-real-1", ..PLAIN };

fn sent_as(conversation: &Conversation<'_>, outgoing: &Outgoing<'_>) -> (Value, Vec<String>) {
    let mut dropped = Vec::new();
    let body = body(conversation, outgoing, &mut dropped).unwrap();
    (serde_json::from_slice(&body).unwrap(), words(&dropped))
}

#[track_caller]
fn sends(conversation: &Conversation<'_>, golden: &str, dropped: &[&str]) {
    let (sent, without) = sent_as(conversation, &OUTGOING);
    assert_eq!(sent, serde_json::from_str::<Value>(golden).unwrap());
    assert_eq!(without, dropped);
}

#[test]
fn a_question_and_every_setting() {
    sends(&asks([says("Light the lamp.")]), include_str!("golden/plain.request.json"), &[]);
    let conversation = Conversation {
        system: vec![says("Be brief."), says(" "), says("Be kind.")],
        output_limit: Some(300),
        stop: vec!["three".into(), "\n".into()],
        settings: vec![
            set(SettingKind::Temperature, "temperature", "1.7"),
            set(SettingKind::TopP, "top_p", "0.9"),
            set(SettingKind::TopK, "top_k", "40"),
            set(SettingKind::Seed, "seed", "7"),
            set(SettingKind::PresencePenalty, "presence_penalty", "1"),
        ],
        user: Some("u-17".into()),
        format: Some(Format::Json),
        stream: true,
        ..asks([says("Light the lamp.")])
    };
    let dropped = ["response_format", "stop", "temperature", "top_p", "seed", "presence_penalty"];
    sends(&conversation, include_str!("golden/settings.request.json"), &dropped);
}

#[test]
fn tools_calls_and_results() {
    let cached = || Some(raw(r#"{"type":"ephemeral"}"#));
    let mut conversation = asks([Block::Text { text: "Tide?".into(), cache: cached() }]);
    conversation.say(
        Role::Assistant,
        [
            Block::Reasoning { text: "A table.".into(), signature: Some("ragmux-signed:anthropic:c2ln".into()) },
            Block::RedactedReasoning { data: "ragmux-redacted:anthropic:ZGF0YQ==".into() },
            Block::Reasoning { text: "Somebody else's.".into(), signature: None },
            called("call_1", "tide_table", r#"{"harbour": "Saint-Malo"}"#),
            called("call_2", "clock", ""),
            called("call_3", "clock", "[not json"),
        ],
    );
    let picture = picture(ImageSource::Url("https://pictures.example/clock.png".into()), None);
    conversation.say(
        Role::User,
        [
            says("And now?"),
            result("call_1", vec![says("high at nine")], false),
            result("call_2", vec![says("late"), picture], true),
        ],
    );
    conversation.system = vec![Block::Text { text: "Rules.".into(), cache: cached() }];
    let schema = r#"{"type":"object","properties":{"harbour":{"type":"string"}},"required":["harbour"],"additionalProperties":false}"#;
    conversation.tools = vec![
        Tool {
            description: Some("When the tide is high.".into()),
            strict: Some(true),
            ..tool("tide_table", Some(schema))
        },
        tool("clock", None),
        Tool { cache: cached(), ..tool("loose", Some(r#"{"properties":{"a":{}}}"#)) },
    ];
    conversation.tool_choice = Some(ToolChoice::Named("clock".into()));
    conversation.parallel_tools = Some(false);
    sends(&conversation, include_str!("golden/tools.request.json"), &["reasoning"]);
    for (choice, one, sent) in [
        (Some(ToolChoice::Auto), None, r#"{"type":"auto"}"#),
        (Some(ToolChoice::None), Some(false), r#"{"type":"none"}"#),
        (Some(ToolChoice::Required), Some(true), r#"{"type":"any"}"#),
        (None, Some(false), r#"{"type":"auto","disable_parallel_tool_use":true}"#),
        (None, Some(true), "null"),
    ] {
        (conversation.tool_choice, conversation.parallel_tools) = (choice, one);
        assert_eq!(sent_as(&conversation, &OUTGOING).0["tool_choice"], serde_json::from_str::<Value>(sent).unwrap());
    }
    conversation.tools.clear();
    conversation.tool_choice = Some(ToolChoice::Required);
    assert!(sent_as(&conversation, &OUTGOING).0.get("tool_choice").is_none());
}

#[test]
fn an_answer_to_go_on_with_ends_without_white_space() {
    let mut conversation = asks([says("Count.")]);
    conversation.say(Role::Assistant, [says("One, two,\n")]);
    assert_eq!(sent_as(&conversation, &OUTGOING).0["messages"][1]["content"], "One, two,");
    conversation.turns[1].blocks.insert(0, says("Well, "));
    let blocks = sent_as(&conversation, &OUTGOING).0["messages"][1]["content"].take();
    assert_eq!((&blocks[0]["text"], &blocks[1]["text"]), (&"Well, ".into(), &"One, two,".into()));
    conversation.say(Role::User, [says("Go on. ")]);
    assert_eq!(sent_as(&conversation, &OUTGOING).0["messages"][2]["content"], "Go on. ");
}

#[test]
fn ids_of_other_providers_fit() {
    let mut conversation = asks([says("Tide?")]);
    conversation.say(Role::Assistant, [called("functions.tide:0", "tide", "{}")]);
    conversation.say(Role::User, [result("functions.tide:0", vec![says("high")], false)]);
    let (sent, _) = sent_as(&conversation, &OUTGOING);
    assert_eq!(sent["messages"][1]["content"][0]["id"], "functions_2e_tide_3a_0");
    assert_eq!(sent["messages"][2]["content"][0]["tool_use_id"], "functions_2e_tide_3a_0");
}

#[test]
fn pictures_and_documents() {
    let far = ImageSource::Url("https://pictures.example/a.jpg".into());
    let conversation = asks([
        picture(inline("image/png", "iVBORw0KGgo="), Some("high")),
        Block::Image { source: far, detail: Some("low".into()), cache: Some(raw(r#"{"type":"ephemeral"}"#)) },
        document("application/pdf", "JVBERi0xLjc=", Some("log.pdf")),
        document("text/markdown", "aGlnaCBhdCBuaW5l", None),
        says("What is this?"),
    ]);
    sends(&conversation, include_str!("golden/vision.request.json"), &["detail"]);
    let odd = asks([document("application/zip", "UEs=", None)]);
    assert!(matches!(body(&odd, &OUTGOING, &mut Vec::new()), Err(RequestError::Invalid { .. })));
}

#[test]
fn structured_output() {
    let schema = r#"{"type":"object","properties":{"colour":{"type":"string"}},"required":["colour"],"additionalProperties":false}"#;
    let format = Format::Schema { name: "c".into(), description: None, schema: raw(schema), strict: Some(true) };
    let conversation = Conversation { format: Some(format), ..asks([says("A colour.")]) };
    sends(&conversation, include_str!("golden/schema.request.json"), &["response_format.json_schema.name"]);
}

#[test]
fn thinking_where_the_api_allows_it() {
    let effort = |effort| Reasoning { name: "reasoning_effort", effort: Some(effort), budget: None };
    let asked = |reasoning| Conversation {
        reasoning: Some(reasoning),
        output_limit: Some(8000),
        ..asks([says("Nine times seven?")])
    };
    sends(&asked(effort(Effort::Medium)), include_str!("golden/thinking.request.json"), &[]);
    let budget = Reasoning { name: "reasoning", effort: None, budget: Some(4000) };
    sends(&asked(budget), include_str!("golden/thinking.request.json"), &[]);
    assert!(sent_as(&asked(effort(Effort::None)), &OUTGOING).0.get("thinking").is_none());
    // Less than the least is the least.
    assert_eq!(sent_as(&asked(effort(Effort::Minimal)), &OUTGOING).0["thinking"]["budget_tokens"], 1024);

    let refused = |change: fn(&mut Conversation<'static>)| {
        let mut conversation = asked(effort(Effort::High));
        change(&mut conversation);
        let (sent, dropped) = sent_as(&conversation, &OUTGOING);
        sent.get("thinking").is_none() && dropped == ["reasoning_effort"]
    };
    assert!(refused(|conversation| conversation.output_limit = Some(1024)));
    assert!(refused(|conversation| {
        conversation.tools.push(tool("f", None));
        conversation.tool_choice = Some(ToolChoice::Required);
    }));
    assert!(refused(|conversation| {
        conversation.say(Role::Assistant, [called("a", "f", "{}")]);
        conversation.say(Role::User, [result("a", Vec::new(), false)]);
    }));

    let mut steered = asked(effort(Effort::High));
    steered.settings = vec![
        set(SettingKind::Temperature, "temperature", "0.2"),
        set(SettingKind::TopP, "top_p", "0.96"),
        set(SettingKind::TopK, "top_k", "4"),
    ];
    let (sent, dropped) = sent_as(&steered, &OUTGOING);
    assert_eq!((&sent["top_p"], dropped), (&Value::from(0.96), vec!["temperature".to_owned(), "top_k".to_owned()]));
}

#[test]
fn an_answer_is_bounded_whoever_bounds_it() {
    let bound =
        |tokens| Some(OutputBound { field: "max_tokens", tokens, family: tokens::Family::Estimated, prompt_tokens: 0 });
    for (limit, output_bound, max_output, sent) in [
        (None, None, None, 4096),
        (None, None, Some(9000), 9000),
        (Some(20), None, Some(9000), 20),
        (Some(20), bound(10), Some(9000), 10),
        (Some(5), bound(10), None, 5),
        (None, bound(10), Some(9000), 10),
        (Some(0), None, None, 1),
    ] {
        let conversation = Conversation { output_limit: limit, ..asks([says("a")]) };
        let outgoing = Outgoing { output_bound, max_output, ..OUTGOING };
        assert_eq!(sent_as(&conversation, &outgoing).0["max_tokens"], sent);
    }
}

#[test]
fn a_conversation_in_which_nobody_speaks_is_refused() {
    for conversation in [Conversation { system: vec![says("Rules.")], ..Conversation::default() }, asks([says(" ")])] {
        assert!(matches!(body(&conversation, &OUTGOING, &mut Vec::new()), Err(RequestError::Invalid { .. })));
    }
}
