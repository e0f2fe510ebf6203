//! Requests and answers as the API's reference shows them.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::dialect::golden::{
    asks, call, called, document, every_setting, inline, picture, raw, result, says, text, tool, used, words,
};
use crate::dialect::openai::{Outgoing, OutputBound, RequestError};
use crate::error::UpstreamError;
use crate::hub::{
    Block, Conversation, Effort, Event, Finish, Format, ImageSource, Part, Reader, Reasoning, Role, Tool, ToolChoice,
    Whole,
};
use crate::images::{FetchedImages, Image};
use crate::usage::{Lacks, Usage};

/// What a reader makes of a stream, and how it ended.
fn read_stream(transcript: &str) -> (Whole, Result<(), UpstreamError>, OllamaReader) {
    let mut reader = OllamaReader::new(None);
    let mut events: Vec<Event<'_>> = Vec::new();
    let mut ended = Ok(());
    for line in transcript.lines() {
        assert!(!reader.is_over());
        ended = reader.read(None, line.as_bytes(), &mut events);
        if ended.is_err() {
            break;
        }
    }
    assert!(matches!(events.first(), Some(Event::Start { .. })));
    (Whole::of(events), ended, reader)
}

#[test]
fn an_answer_reads_the_same_streamed_and_whole() {
    for (stream, whole, parts, finish, usage) in [
        (
            include_str!("golden/text.ndjson"),
            include_str!("golden/text.json"),
            vec![text("The lamp is lit \u{2014} \u{e0} bient\u{f4}t.")],
            Finish::Stop,
            Some(used(14, 11)),
        ),
        (
            include_str!("golden/tools.ndjson"),
            include_str!("golden/tools.json"),
            vec![
                text("Looking at both."),
                call("call_a", "tide_table", r#"{"harbour":"Saint-Malo"}"#),
                call("call_b", "clock", "{}"),
            ],
            Finish::ToolCalls,
            Some(used(412, 63)),
        ),
        (
            include_str!("golden/reasoning.ndjson"),
            include_str!("golden/reasoning.json"),
            vec![Part::Reasoning { text: "Nine times seven.".to_owned(), signature: None }, text("63")],
            Finish::Length,
            // The prompt was in the cache, and its tokens are not known.
            Some(Usage { completion_tokens: 25, lacks: Lacks::Prompt, ..Usage::default() }),
        ),
    ] {
        let (streamed, ended, reader) = read_stream(stream);
        ended.unwrap();
        assert!(reader.is_over() && reader.is_complete());
        assert_eq!((&streamed.parts, streamed.finish.as_ref(), streamed.usage), (&parts, Some(&finish), usage));
        let whole = read_whole(&Bytes::from_static(whole.as_bytes()), None).unwrap();
        assert_eq!(whole.model.as_deref(), Some("lamp:8b"));
        assert_eq!((whole.parts, whole.finish, whole.usage), (parts, Some(finish), usage));
    }
}

#[test]
fn calls_without_an_id_are_numbered_across_the_stream() {
    let line = r#"{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]},"done":false}"#;
    let mut reader = OllamaReader::new(None);
    let mut events = Vec::new();
    for _ in 0..2 {
        reader.read(None, line.as_bytes(), &mut events).unwrap();
    }
    let calls: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall { index, id, .. } => Some((*index, id.as_ref())),
            _ => None,
        })
        .collect();
    assert_eq!((calls[0].0, calls[1].0, calls.len()), (0, 1, 2));
    assert!(calls[0].1.starts_with("call_") && calls[0].1 != calls[1].1);
}

#[test]
fn errors_are_errors_wherever_they_stand() {
    let (said, ended, reader) = read_stream(include_str!("golden/failed.ndjson"));
    assert_eq!((said.parts, reader.is_complete()), (vec![text("So far")], false));
    let error = ended.unwrap_err();
    assert_eq!(error.status(), 502);
    assert!(error.message().ends_with("unexpected EOF"));
    assert!(read_whole(&Bytes::from_static(b"{\"error\":\"no\"}"), None).is_err());
    for body in ["[]", "{}", r#"{"message":{"content":"a"},"done":false}"#] {
        assert!(read_whole(&Bytes::from_static(body.as_bytes()), None).is_err(), "{body}");
    }
}

fn outgoing(model: &str) -> Outgoing<'_> {
    Outgoing { model, public_model: "asked", ..Outgoing::default() }
}

fn sent_as(conversation: &Conversation<'_>, outgoing: &Outgoing<'_>) -> (Value, Vec<String>) {
    let mut dropped = Vec::new();
    let body = body(conversation, outgoing, &mut dropped).unwrap();
    (serde_json::from_slice(&body).unwrap(), words(&dropped))
}

fn golden(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_question_and_every_setting() {
    let plain = sent_as(&asks([says("Light the lamp.")]), &outgoing("lamp:8b"));
    assert_eq!(plain, (golden(include_str!("golden/plain.request.json")), vec![]));
    let mut conversation = Conversation {
        system: vec![says("Be brief."), says(""), says("Be kind.")],
        output_limit: Some(300),
        stop: vec!["three".into(), "".into()],
        settings: every_setting(),
        user: Some("u-17".into()),
        reasoning: Some(Reasoning { name: "reasoning_effort", effort: Some(Effort::Low), budget: None }),
        format: Some(Format::Schema {
            name: "lamp".into(),
            description: None,
            schema: raw(r#"{"type":"object","properties":{"lit":{"type":"boolean"}}}"#),
            strict: None,
        }),
        stream: true,
        ..asks([
            says("Light the lamp."),
            picture(inline("image/jpg", "iVBORw0KGgo="), Some("high")),
            picture(ImageSource::Url("https://pictures.example/a".into()), None),
            document("text/markdown", "aGlnaCBhdCBuaW5l", None),
        ])
    };
    let webp = Image { media_type: "image/webp".to_owned(), data: Bytes::from_static(b"light") };
    let images = FetchedImages::of([("https://pictures.example/a".to_owned(), webp)]);
    let with = Outgoing { images: Some(&images), ..outgoing("qwen3:8b") };
    let dropped = ["detail", "user"].map(str::to_owned).to_vec();
    assert_eq!(sent_as(&conversation, &with), (golden(include_str!("golden/settings.request.json")), dropped));
    conversation.format = Some(Format::Json);
    assert_eq!(sent_as(&conversation, &with).0["format"], "json");
    let bound = OutputBound { field: "max_tokens", tokens: 20, family: tokens::Family::Estimated, prompt_tokens: 0 };
    let bounded = Outgoing { output_bound: Some(bound), ..with };
    for (asked, sent) in [(Some(300), 20), (Some(7), 7), (None, 20)] {
        conversation.output_limit = asked;
        assert_eq!(sent_as(&conversation, &bounded).0["options"]["num_predict"], sent);
    }
    let effort = |effort| Some(Reasoning { name: "reasoning_effort", effort, budget: None });
    for (model, reasoning, think) in [
        ("lamp", effort(Some(Effort::None)), json!(false)),
        ("lamp", effort(Some(Effort::High)), Value::Null),
        ("qwen3", effort(Some(Effort::High)), json!(true)),
        ("lamp", effort(None), Value::Null),
        ("qwen3", Some(Reasoning { name: "thinking", effort: None, budget: Some(2048) }), json!(true)),
        ("gpt-oss:20b", effort(Some(Effort::None)), json!("low")),
        ("library/gpt-oss", effort(Some(Effort::Medium)), json!("medium")),
        ("gpt-oss", effort(Some(Effort::Highest)), json!("high")),
    ] {
        conversation.reasoning = reasoning;
        let sent = sent_as(&conversation, &Outgoing { model, ..with }).0;
        assert_eq!(sent.get("think").cloned().unwrap_or_default(), think, "{model} {reasoning:?}");
    }
}

#[test]
fn tools_calls_and_results() {
    let mut conversation = asks([says("Tide?")]);
    conversation.say(
        Role::Assistant,
        [
            Block::Reasoning { text: "A table.".into(), signature: Some("ragmux-signed:gemini:c2ln".into()) },
            called("call_1", "tide_table", r#"{"harbour": "Saint-Malo"}"#),
            called("call_2", "clock", ""),
            called("call_3", "clock", "[not json"),
        ],
    );
    conversation.say(
        Role::User,
        [
            says("And now?"),
            result("call_1", vec![says("high at nine")], false),
            result(
                "call_2",
                vec![says("late"), picture(inline("image/png", "iVBORw0KGgo="), None), says("very late")],
                true,
            ),
        ],
    );
    let schema = r#"{"type":"object","properties":{"harbour":{"type":"string"}}}"#;
    conversation.tools = vec![
        Tool { description: Some("When the tide is high.".into()), ..tool("tide_table", Some(schema)) },
        tool("clock", None),
    ];
    let plain = outgoing("lamp:8b");
    let sent = sent_as(&conversation, &plain);
    assert_eq!(
        sent,
        (
            golden(include_str!("golden/tools.request.json")),
            ["reasoning.signature", "is_error"].map(str::to_owned).to_vec()
        )
    );
    conversation.parallel_tools = Some(false);
    conversation.tool_choice = Some(ToolChoice::Required);
    assert_eq!(
        sent_as(&conversation, &plain).1,
        ["reasoning.signature", "is_error", "tool_choice", "parallel_tool_calls"]
    );
    conversation.tool_choice = Some(ToolChoice::None);
    assert!(sent_as(&conversation, &plain).0.get("tools").is_none());
    conversation.say(Role::User, [result("call_9", vec![], false)]);
    assert!(body(&conversation, &plain, &mut Vec::new()).is_err());
}

#[test]
fn what_cannot_be_passed_on_is_refused() {
    for block in [
        picture(inline("image/heic", "AAAA"), None),
        picture(ImageSource::Url("https://pictures.example/b".into()), None),
        document("application/pdf", "JVBERi0xLjc=", None),
        document("text/plain", "/w==", None),
    ] {
        let refused = body(&asks([block.clone()]), &outgoing("lamp"), &mut Vec::new());
        assert!(matches!(refused, Err(RequestError::Invalid { .. })), "{block:?}");
    }
    assert!(body(&Conversation::default(), &outgoing("lamp"), &mut Vec::new()).is_err());
}
