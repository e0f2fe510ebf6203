use serde_json::Value;

use super::super::{MessageReader, read_whole};
use super::*;
use crate::hub::Reader;
use crate::sse::{self, Piece, Scanner};

/// Everything a client is sent for these events.
fn written(events: &[Event<'_>], member: Option<(&str, &str)>) -> String {
    let (mut writer, mut out) = (MessageWriter::new("asked".to_owned()), BytesMut::new());
    for event in events {
        writer.write(event, &mut out);
    }
    writer.end(member, &mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

/// The events as data, each with the name that its type repeats.
fn events_of(text: &str) -> Vec<Value> {
    let mut scanner = Scanner::default();
    scanner.push(text.as_bytes());
    let mut events = Vec::new();
    while let Some(piece) = scanner.next_piece().unwrap() {
        let Piece::Block(block) = piece else { continue };
        let event = sse::Event::read(&block, false);
        let data: Value = serde_json::from_slice(&event.data).unwrap();
        assert_eq!(data["type"].as_str().unwrap().as_bytes(), event.name.unwrap());
        events.push(data);
    }
    assert!(scanner.take_rest().is_empty());
    events
}

/// Reads a stream by the grammar of the API: one block at a time, numbered from zero.
fn checked(text: &str) -> Whole {
    let events = events_of(text);
    let (mut next, mut open) = (0, None);
    for (at, event) in events.iter().enumerate() {
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap() {
            "message_start" => assert_eq!(at, 0),
            "content_block_start" => {
                assert_eq!((index, open), (Some(next), None));
                open = index;
                next += 1;
            }
            "content_block_delta" => assert_eq!(index, open),
            "content_block_stop" => {
                assert_eq!(index, open);
                open = None;
            }
            "message_delta" => assert_eq!(open, None),
            "message_stop" => assert_eq!(at, events.len() - 1),
            _ => assert!(at == events.len() - 2),
        }
    }
    let data: Vec<String> = events.iter().map(Value::to_string).collect();
    let mut reader = MessageReader::new(None);
    let mut read = Vec::new();
    for data in &data {
        reader.read(None, data.as_bytes(), &mut read).unwrap();
    }
    assert!(reader.is_over());
    Whole::of(read)
}

fn start() -> Event<'static> {
    Event::Start { id: Some("abc".into()), model: Some("real".into()) }
}

fn call(index: u64, id: &'static str) -> Event<'static> {
    Event::ToolCall { index, id: id.into(), name: "f".into(), signature: None }
}

fn arguments(index: u64, json: &'static str) -> Event<'static> {
    Event::Arguments { index, json: json.into() }
}

fn made(id: &str, arguments: &str) -> Part {
    Part::ToolCall { id: id.to_owned(), name: "f".to_owned(), arguments: arguments.to_owned(), signature: None }
}

const USAGE: Usage = Usage {
    prompt_tokens: 250,
    completion_tokens: 9,
    cached_tokens: 200,
    cache_write_tokens: 40,
    reasoning_tokens: 3,
    cost: None,
    lacks: crate::usage::Lacks::Nothing,
};

#[test]
fn every_kind_of_block_is_told_in_its_place() {
    let events = [
        start(),
        Event::Reasoning("th".into()),
        Event::Reasoning("ink".into()),
        Event::ReasoningSignature("ragmux-signed:anthropic:si".into()),
        Event::ReasoningSignature("gn".into()),
        Event::Reasoning("again".into()),
        Event::RedactedReasoning("ragmux-redacted:anthropic:data".into()),
        Event::Text("he".into()),
        Event::Text("re".into()),
        call(0, "a"),
        arguments(0, "{\"x\":"),
        arguments(0, "1}"),
        Event::Usage(USAGE),
        Event::Finish(Finish::ToolCalls),
    ];
    let text = written(&events, Some(("ragmux", "{\"sources\":[]}")));
    let whole = checked(&text);
    assert_eq!(
        whole.parts,
        [
            Part::Reasoning { text: "think".to_owned(), signature: Some("ragmux-signed:anthropic:sign".to_owned()) },
            Part::Reasoning { text: "again".to_owned(), signature: None },
            Part::RedactedReasoning("ragmux-redacted:anthropic:data".to_owned()),
            Part::Text("here".to_owned()),
            made("a", "{\"x\":1}"),
        ]
    );
    assert_eq!((whole.usage, &whole.finish), (Some(USAGE), &Some(Finish::ToolCalls)));
    assert_eq!((whole.id.as_deref(), whole.model.as_deref()), (Some("msg_abc"), Some("asked")));
    let sent = events_of(&text);
    assert_eq!(sent[sent.len() - 2], json!({ "type": "ragmux", "ragmux": { "sources": [] } }));
    let signatures = sent.iter().filter(|event| event["delta"]["type"] == "signature_delta");
    assert_eq!(signatures.count(), 1);
    // The same in one piece.
    let member = Some(("ragmux", "{\"sources\":[]}"));
    let body = MessageWriter::new("asked".to_owned()).whole(&Whole::of(events), member);
    let read = read_whole(&body, None).unwrap();
    assert_eq!((read.parts, read.usage, read.finish), (whole.parts, whole.usage, whole.finish));
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["ragmux"], json!({ "sources": [] }));
}

#[test]
fn calls_told_side_by_side_become_one_after_the_other() {
    let begun = [
        start(),
        call(0, "a"),
        call(1, "b"),
        call(2, "c"),
        arguments(1, "[1"),
        arguments(0, "{\"x\":"),
        arguments(1, "]"),
        arguments(0, "2}"),
        arguments(2, "{}"),
        arguments(9, "nobody's"),
    ];
    let whole = checked(&written(&begun, None));
    assert_eq!(whole.parts, [made("a", "{\"x\":2}"), made("b", "[1]"), made("c", "{}")]);
    assert_eq!(whole.finish, Some(Finish::ToolCalls));
}

#[test]
fn what_comes_amid_the_input_of_a_call_waits_for_its_end() {
    let events = [
        start(),
        call(0, "a"),
        arguments(0, "{\"x\":\"}"),
        Event::Text("mi".into()),
        Event::Text("d".into()),
        Event::Reasoning("think".into()),
        Event::ReasoningSignature("ragmux-signed:anthropic:si".into()),
        Event::ReasoningSignature("gn".into()),
        call(1, "b"),
        Event::RedactedReasoning("ragmux-redacted:anthropic:data".into()),
        arguments(1, "{\"y\""),
        arguments(0, "\\\"\"}"),
        Event::Text("after".into()),
        arguments(1, ":[2]}"),
        Event::Text(" all".into()),
        Event::Finish(Finish::ToolCalls),
    ];
    let told = [
        made("a", "{\"x\":\"}\\\"\"}"),
        Part::Text("mid".to_owned()),
        Part::Reasoning { text: "think".to_owned(), signature: Some("ragmux-signed:anthropic:sign".to_owned()) },
        made("b", "{\"y\":[2]}"),
        Part::RedactedReasoning("ragmux-redacted:anthropic:data".to_owned()),
        Part::Text("after all".to_owned()),
    ];
    assert_eq!(checked(&written(&events, None)).parts, told);
    // Input that never becomes whole hides nothing of the rest.
    let broken = [start(), call(0, "a"), arguments(0, "{\"x\":"), Event::Text("mid".into()), arguments(0, "1")];
    assert_eq!(checked(&written(&broken, None)).parts, [made("a", "{\"x\":1"), Part::Text("mid".to_owned())]);
}

#[test]
fn no_more_is_held_than_one_event_may_have() {
    let (mut writer, mut out) = (MessageWriter::new("asked".to_owned()), BytesMut::new());
    let piece = "x".repeat(MAX_EVENT_BYTES / 8);
    let mut write = |event| {
        writer.write(&event, &mut out);
        writer.is_overfull()
    };
    assert!(!write(call(0, "a")) && !write(arguments(0, "{")));
    assert_eq!((0..9).filter(|_| write(Event::Text(piece.as_str().into()))).count(), 2);
    // As soon as the call has all of it, there is room again.
    assert!(!write(arguments(0, "}")));
}

#[test]
fn a_call_is_told_as_it_comes() {
    let (mut writer, mut out) = (MessageWriter::new("asked".to_owned()), BytesMut::new());
    for event in [start(), call(0, "a"), arguments(0, "{}"), call(1, "b"), arguments(1, "{\"y\"")] {
        writer.write(&event, &mut out);
    }
    assert_eq!(events_of(std::str::from_utf8(&out).unwrap()).last().unwrap()["delta"]["partial_json"], "{\"y\"");
}

#[test]
fn an_answer_says_why_it_ended() {
    let said = Event::Text("so".into());
    for (events, reason, sequence) in [
        (vec![], "end_turn", Value::Null),
        (vec![said.clone(), Event::Finish(Finish::Stop)], "end_turn", Value::Null),
        (vec![said.clone(), Event::Finish(Finish::Length)], "max_tokens", Value::Null),
        (vec![said.clone(), Event::Finish(Finish::ContentFilter)], "refusal", Value::Null),
        (vec![Event::Refusal("no".into()), Event::Finish(Finish::Stop)], "refusal", Value::Null),
        (vec![call(0, "a"), Event::Finish(Finish::Stop)], "tool_use", Value::Null),
        (vec![call(0, "a"), arguments(0, "{\"x"), Event::Finish(Finish::Length)], "max_tokens", Value::Null),
        (vec![said, Event::Finish(Finish::StopSequence(Some("x".to_owned())))], "stop_sequence", "x".into()),
    ] {
        let text = written(&events, None);
        checked(&text);
        let sent = events_of(&text);
        let delta = &sent[sent.len() - 2]["delta"];
        assert_eq!((delta["stop_reason"].as_str(), &delta["stop_sequence"]), (Some(reason), &sequence));
        let body = MessageWriter::new("asked".to_owned()).whole(&Whole::of(events), None);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((body["stop_reason"].as_str(), &body["stop_sequence"]), (Some(reason), &sequence));
    }
}

#[test]
fn what_one_provider_of_this_api_says_is_what_a_client_gets() {
    for golden in [
        include_str!("golden/text.sse"),
        include_str!("golden/tools.sse"),
        include_str!("golden/reasoning.sse"),
        include_str!("golden/cached.sse"),
        include_str!("golden/stopped.sse"),
        include_str!("golden/refused.sse"),
    ] {
        let data: Vec<String> = events_of(golden).iter().map(Value::to_string).collect();
        let mut reader = MessageReader::new(None);
        let mut events = Vec::new();
        data.iter().for_each(|data| reader.read(None, data.as_bytes(), &mut events).unwrap());
        let again = checked(&written(&events, None));
        let mut first = Whole::of(events);
        first.model = Some("asked".to_owned());
        assert_eq!(again, first);
    }
}

#[test]
fn a_failure_is_an_event_of_the_api() {
    let told = Told { status: 503, kind: "upstream_error", code: Some("upstream_failed"), message: "it \"failed\"" };
    let mut out = BytesMut::new();
    MessageWriter::new("asked".to_owned()).fail(&told, &mut out);
    let error = json!({ "type": "overloaded_error", "message": "it \"failed\"", "code": "upstream_failed" });
    assert_eq!(events_of(std::str::from_utf8(&out).unwrap()), [json!({ "type": "error", "error": error })]);
}

#[test]
fn the_signature_of_a_call_is_an_empty_thought_before_it() {
    let call = |index, signature: Option<&'static str>| Event::ToolCall {
        index,
        id: format!("call_{index}").into(),
        name: "f".into(),
        signature: signature.map(Into::into),
    };
    let arguments = |index| Event::Arguments { index, json: "{}".into() };
    let thought =
        |text: &str, signature: &str| Part::Reasoning { text: text.to_owned(), signature: Some(signature.to_owned()) };
    let made = |index: u64| Part::ToolCall {
        id: format!("call_{index}"),
        name: "f".to_owned(),
        arguments: "{}".to_owned(),
        signature: None,
    };
    let events = [
        start(),
        Event::Text("a".into()),
        call(0, Some("ragmux-signed:gemini:b25l")),
        arguments(0),
        call(1, Some("ragmux-signed:gemini:dHdv")),
        arguments(1),
        call(2, None),
        arguments(2),
        Event::Finish(Finish::ToolCalls),
    ];
    let parts = [
        Part::Text("a".to_owned()),
        thought("", "ragmux-signed:gemini:b25l"),
        made(0),
        thought("", "ragmux-signed:gemini:dHdv"),
        made(1),
        made(2),
    ];
    assert_eq!(checked(&written(&events, None)).parts, parts);
    let body = MessageWriter::new("asked".to_owned()).whole(&Whole::of(events), None);
    assert_eq!(read_whole(&body, None).unwrap().parts, parts);
    // A thought that waits for its signature is told with that of the call.
    let events = [start(), Event::Reasoning("think".into()), call(0, Some("ragmux-signed:gemini:b25l")), arguments(0)];
    assert_eq!(checked(&written(&events, None)).parts, [thought("think", "ragmux-signed:gemini:b25l"), made(0)]);
}
